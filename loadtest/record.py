"""What is known of one request after it: the raw material of every figure, one JSON line each."""

from __future__ import annotations

from array import array
from itertools import pairwise

import msgspec

OK = "OK"
UNFINISHED = "UNFINISHED"
"""Cancelled by us because the run's drain was over."""
CLIENT_CANCELLED = "CLIENT_CANCELLED"
"""Cancelled by us because the workload said so."""


class Usage(msgspec.Struct, frozen=True):
    """As the server told; None where it did not."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    queued: float | None = None
    """Seconds on the server's clock from arrival until the prompt's computation began."""
    prefill: float | None = None
    """Seconds from there until the first token."""


class RequestRecord(msgspec.Struct):
    """Times are seconds after the run's start, on the client machine's monotonic clock."""

    session: int
    turn: int
    due: float
    """When it should have been sent."""
    sent: float
    end: float
    status: str
    """"OK", a gRPC status, "HTTP 429", or one of this module's names."""
    detail: str
    priority: str
    tenant: str
    prompt_tokens: int
    """As asked for; what the server counted stands in ``usage``."""
    max_tokens: int
    usage: Usage
    stalled: bool
    warmup: bool
    times: array[float]
    """When each content message came."""
    tokens: array[int]
    """Tokens in each of them, as the wire tells; 1 where it does not."""

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def lag(self) -> float:
        """How late the client itself was."""
        return self.sent - self.due

    @property
    def ttft(self) -> float | None:
        """From sending to the first content."""
        return self.times[0] - self.sent if self.times else None

    @property
    def latency(self) -> float:
        return self.end - self.sent

    @property
    def output_tokens(self) -> int:
        """The server's count where it gives one, else what the messages carried."""
        told = self.usage.completion_tokens
        return told if told is not None else sum(self.tokens)

    @property
    def tpot(self) -> float | None:
        """Mean seconds per output token after the first: (latency - TTFT) / (tokens - 1)."""
        first, count = self.ttft, self.output_tokens
        return (self.latency - first) / (count - 1) if first is not None and count > 1 else None

    def gaps(self) -> list[float]:
        """Seconds between content messages."""
        return [after - before for before, after in pairwise(self.times)]

    def gap_tokens(self) -> list[float]:
        """Tokens that each gap stands for. Where the wire does not tell, the server's total is spread over the messages."""
        carried = sum(self.tokens)
        factor = self.output_tokens / carried if carried and self.usage.completion_tokens else 1.0
        # The end-of-sequence token is counted but never sent: a factor just above 1 is no coalescing.
        if carried and self.output_tokens - carried <= 1:
            factor = 1.0
        return [count * factor for count in self.tokens[1:]]


class Wire(msgspec.Struct, frozen=True):
    """A record as it crosses a pipe and as it is written: arrays as plain lists."""

    session: int
    turn: int
    due: float
    sent: float
    end: float
    status: str
    detail: str
    priority: str
    tenant: str
    prompt_tokens: int
    max_tokens: int
    usage: Usage
    stalled: bool
    warmup: bool
    times: list[float]
    tokens: list[int]


def to_wire(record: RequestRecord) -> Wire:
    values = {name: getattr(record, name) for name in Wire.__struct_fields__}
    return Wire(**values | {"times": record.times.tolist(), "tokens": record.tokens.tolist()})


def from_wire(wire: Wire) -> RequestRecord:
    values = {name: getattr(wire, name) for name in Wire.__struct_fields__}
    return RequestRecord(**values | {"times": array("d", wire.times), "tokens": array("i", wire.tokens)})
