"""A request and its sequences as every scheduler knows them, whatever kind of engine runs them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from server.engine import FinishReason, GenerationRequest, PromptChunk

Key = tuple[int, float, int]
"""(class, rank within it, arrival number): who goes first, fixed when the request is queued. Lower goes first; never equal."""


S = TypeVar("S", bound="SequenceRecord")
MAX_CHUNKS = 64
"""That are kept of a request; those after them lengthen the last one."""


class RequestRecord(Generic[S]):
    """One live request: what outlives any single sequence of it. Written by the ledger and, where noted, by others."""

    __slots__ = (
        "cached_tokens",
        "chunks",
        "first_token_at",
        "held",
        "key",
        "planned_at",
        "preemptions",
        "request",
        "scored",
        "sequences",
        "unfinished",
    )

    def __init__(self, request: GenerationRequest, key: Key) -> None:
        self.request = request
        self.key = key
        self.sequences: list[S] = []
        self.unfinished = 0
        """Sequences that have not finished. 0 = the request is over."""
        self.held = 0
        """Sequences that wait for another one of the request to compute the prompt."""
        self.scored = 0
        """Place in the prompt of the last token whose log-probability was delivered."""
        self.planned_at: float | None = None
        """When the first step that ran part of the prompt was planned, or the request was handed to the executor (whoever did it)."""
        self.first_token_at: float | None = None
        self.cached_tokens = 0
        """Prompt tokens taken from the prefix cache before the first token, until a preemption (whoever looked)."""
        self.preemptions = 0
        """How often one of its sequences was set aside (the seats)."""
        self.chunks: list[PromptChunk] = []
        """Of a traced request, what steps computed of its prompt."""

    def add_chunk(self, planned: float, done: float, past: int, tokens: int) -> None:
        """A step that was planned and done at these times computed ``tokens`` after ``past``."""
        began, ended = planned - self.request.arrival, done - self.request.arrival
        if len(self.chunks) == MAX_CHUNKS:
            last = self.chunks.pop()
            began, past, tokens = last.began, last.past, last.tokens + tokens
        self.chunks.append(PromptChunk(began, ended, past, tokens))


class SequenceRecord:
    """One sequence's way from the waiting room to its one finish."""

    __slots__ = (
        "charged",
        "discarded",
        "ending",
        "expected_charge",
        "expected_output",
        "finish",
        "fresh",
        "held",
        "index",
        "key",
        "level",
        "opened",
        "queued",
        "record",
        "request",
        "seated",
        "stop_after",
        "tenant",
    )

    def __init__(
        self, record: RequestRecord[Any], index: int, expected_charge: float = 0.0, expected_output: int = 0
    ) -> None:
        self.record = record
        self.request = record.request.id
        self.index = index
        """Which of the request's n sequences."""
        self.key = (*record.key, index)
        self.level = record.key[0]
        """Its class."""
        self.tenant: str = record.request.tenant
        self.expected_charge = expected_charge
        """Weighted tokens that it will probably take of its tenant's due."""
        self.expected_output = expected_output
        """Tokens that it will probably draw."""
        self.charged: float | None = None
        """What its tenant was charged for it; the waiting room alone writes it."""
        self.queued = False
        """In the waiting room."""
        self.seated = False
        """Holds a seat and perhaps blocks."""
        self.held = False
        """Waits for another sequence of its request to compute the prompt. Neither queued nor seated nor held = finished."""
        self.opened = False
        """The engine was told of it."""
        self.fresh = True
        """No token drawn yet."""
        self.ending: FinishReason | None = None
        """The wish to end it; the first wins, and tokens that arrive after it are discarded."""
        self.stop_after: int | None = None
        """Output tokens that count, where the text stage said stop."""
        self.discarded = 0
        """Tokens thrown away so far."""
        self.finish: FinishReason | None = None
        """Set once, by the ledger."""

    @property
    def generated(self) -> int:
        """Output tokens delivered."""
        raise NotImplementedError

    @property
    def waiting_work(self) -> int:
        """Tokens to compute before its next token."""
        raise NotImplementedError
