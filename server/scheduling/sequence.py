"""A request and its sequences as the batcher knows them."""

from __future__ import annotations

from array import array

from engines.contract import TokenArray
from server.engine import FinishReason, GenerationRequest
from server.kv.sequence_blocks import SequenceBlocks

Key = tuple[int, float, int]
"""(class, order within it, arrival number): who goes first, fixed when the request is queued. Lower goes first; never equal."""


class RequestRecord:
    """One live request: what outlives any single sequence of it. Written by the ledger and, where noted, by the prefiller."""

    __slots__ = (
        "arrival_number", "cached_tokens", "ending", "first_token_at", "key", "planned_at", "preemptions", "request", "sequences", "unfinished",
    )  # fmt: skip

    def __init__(self, request: GenerationRequest, key: Key) -> None:
        self.request = request
        self.key = key
        self.sequences: list[Sequence] = []
        self.unfinished = 0
        """Sequences that have not finished. 0 = the request is over."""
        self.ending: FinishReason | None = None
        """The wish to end the whole request; the first wins."""
        self.planned_at: float | None = None
        """When the first step that ran part of the prompt was planned (prefiller)."""
        self.first_token_at: float | None = None
        self.cached_tokens = 0
        """Prompt tokens taken from the prefix cache before the first token, until a preemption (prefiller)."""
        self.preemptions = 0


class Sequence:
    """One sequence. Progress is three numbers, ``computed <= scheduled <= total``; every status derives from them.

    computed   tokens whose keys and values are in the blocks: their steps have completed
    scheduled  the same once the step in flight completes
    total      ``len(tokens)``: prompt and output; the last token drawn is never computed unless another follows
    """

    __slots__ = (
        "capacity", "computed", "discarded", "ending", "finish", "fresh", "id", "index", "key", "kv", "limit", "opened",
        "prefix_waits", "prompt_length", "publish_at", "queued", "record", "request", "retry_above", "scheduled", "seated",
        "stop_after", "stops", "tables", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        *,
        sequence_id: int,
        index: int,
        record: RequestRecord,
        tokens: TokenArray,
        kv: SequenceBlocks,
        max_context: int,
    ) -> None:
        request = record.request
        self.id = sequence_id
        """The runner's name for it; never reused."""
        self.index = index
        """Which of the request's n sequences."""
        self.record = record
        self.request = request.id
        self.key = (*record.key, index)
        self.tokens = tokens
        """Prompt and output in one array, appended in O(1)."""
        self.prompt_length = len(tokens)
        self.limit = min(self.prompt_length + request.max_tokens, max_context)
        """Total at which it ends for its length."""
        self.stops = frozenset(request.end_ids + request.stop_ids)
        self.computed = 0
        self.scheduled = 0
        self.kv = kv
        self.tables = kv.tables
        self.capacity = 0
        """Tokens that the block table covers."""
        self.publish_at = 0
        """``computed`` at which the next block is full."""
        self.queued = False
        """In the waiting room."""
        self.seated = False
        """Holds a seat and perhaps blocks. Neither queued nor seated = finished."""
        self.opened = False
        """The runner knows it."""
        self.fresh = True
        """No token drawn yet."""
        self.ending: FinishReason | None = None
        """The wish to end it; the first wins, and tokens that arrive after it are discarded."""
        self.stop_after: int | None = None
        """Output tokens that count, where the text stage said stop."""
        self.discarded = 0
        self.finish: FinishReason | None = None
        """Set once, by the ledger."""
        self.prefix_waits = 0
        self.retry_above = -1
        """Seating failed for want of blocks when this many were available: pointless to try again below."""

    @property
    def waiting_work(self) -> int:
        return len(self.tokens)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def is_prefilling(self) -> bool:
        """Some token other than the last drawn one is still to be computed."""
        return self.seated and (self.fresh or len(self.tokens) - self.computed > 1)

    def reason_of(self, token: int) -> FinishReason:
        """Why one of ``stops`` ends it."""
        return FinishReason.END if token in self.record.request.end_ids else FinishReason.STOP_TOKEN

    def refresh_capacity(self, block_size: int) -> None:
        """Follow ``kv`` after it grew, adopted, published or was released."""
        kv = self.kv
        self.tables = kv.tables
        self.capacity = len(kv.table) * block_size
        self.publish_at = (kv.published + 1) * block_size


def token_array(tokens: tuple[int, ...]) -> TokenArray:
    return array("i", tokens)
