"""A sequence as the batcher knows it: its tokens, its blocks, and how far its computation has come."""

from __future__ import annotations

from array import array

from engines.contract import TokenArray
from server.engine import FinishReason
from server.kv.sequence_blocks import SequenceBlocks
from server.scheduling.record import RequestRecord, SequenceRecord


class Sequence(SequenceRecord):
    """Progress is three numbers, ``computed <= scheduled <= total``; every status derives from them.

    computed   tokens whose keys and values are in the blocks: their steps have completed
    scheduled  the same once the step in flight completes
    total      ``len(tokens)``: prompt and output; the last token drawn is never computed unless another follows
    """

    __slots__ = (
        "capacity",
        "computed",
        "expected_work",
        "id",
        "kv",
        "limit",
        "owed",
        "prefix_waits",
        "prompt_length",
        "publish_at",
        "retry_above",
        "scheduled",
        "stops",
        "tables",
        "tokens",
    )

    def __init__(
        self,
        record: RequestRecord[Sequence],
        index: int,
        *,
        sequence_id: int,
        tokens: TokenArray,
        kv: SequenceBlocks,
        max_context: int,
        expected_charge: float = 0.0,
        expected_work: int = 0,
        expected_output: int = 0,
    ) -> None:
        """``expected_work``: tokens that the cache probably does not have."""
        super().__init__(record, index, expected_charge, expected_output)
        request = record.request
        self.id = sequence_id
        """The runner's name for it; never reused."""
        self.tokens = tokens
        """Prompt and output in one array, appended in O(1)."""
        self.prompt_length = len(tokens)
        self.limit = min(self.prompt_length + request.max_tokens, max_context)
        """Total at which it ends for its length."""
        self.stops = frozenset(request.end_ids + request.stop_ids)
        self.computed = 0
        self.scheduled = 0
        self.expected_work = expected_work
        self.kv = kv
        self.tables = kv.tables
        self.capacity = 0
        """Tokens that the block table covers."""
        self.publish_at = 0
        """``computed`` at which the next block is full."""
        self.owed = False
        """Seated for its class's share: no higher class takes its seat away."""
        self.prefix_waits = 0
        """Steps that it let pass since it last got further."""
        self.retry_above = -1
        """Seating failed for want of blocks when this many were available: pointless to try again below."""

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def scores(self) -> bool:
        """Whether the next tokens that it computes are to be scored: then it reads nothing from the cache."""
        asked = self.record.request.prompt_logprobs is not None
        return asked and max(self.scheduled, self.record.scored) < self.prompt_length - 1

    @property
    def waiting_work(self) -> int:
        return len(self.tokens)

    @property
    def seat_tokens(self) -> int:
        """Blocks for its known tokens that are not cached; those for its output as it draws them."""
        return self.expected_work

    def reason_of(self, token: int) -> FinishReason:
        """Why one of ``stops`` ends it."""
        return FinishReason.END if token in self.record.request.end_ids else FinishReason.STOP_TOKEN

    def refresh_capacity(self, block_size: int) -> None:
        """Follow ``kv`` after it grew, adopted, published or was released."""
        kv = self.kv
        self.tables = kv.tables
        self.capacity = len(kv.table) * block_size
        self.publish_at = kv.full_at


def token_array(tokens: tuple[int, ...]) -> TokenArray:
    return array("i", tokens)
