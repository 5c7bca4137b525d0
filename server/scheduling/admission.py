"""Hard caps on what may wait: the first stage of admission, before anything expensive is done for a request.

Pure: whoever counts what waits (under whatever lock) passes the counts in, so any thread may ask.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import OverloadedError

MIN_RETRY = 0.1
"""Seconds; below this a retry would meet the same queue."""
MAX_RETRY = 60.0
"""Seconds; a client that waits longer has better knowledge than an estimate."""
UNKNOWN_RETRY = 1.0
"""Seconds; what is said before any throughput was measured."""


@dataclass(frozen=True, slots=True)
class AdmissionCaps:
    """What may wait, beyond what runs. A queue of tokens is a promise about the time to first token: cap it at the target times
    the prefill throughput."""

    max_requests: int = 1024
    max_tokens: int = 262_144
    """Prompt tokens."""

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """What waits at this moment."""

    requests: int
    tokens: int
    """Prompt tokens not yet computed."""
    tokens_per_second: float | None = None
    """Measured rate at which prompt tokens leave the queue; None before it was measured."""


class Admission:
    """Says whether one more request may wait. Immutable; any thread."""

    def __init__(self, caps: AdmissionCaps | None = None) -> None:
        self.caps = caps or AdmissionCaps()

    def check(self, request_tokens: int, load: QueueLoad) -> None:
        """Raises OverloadedError, with the time after which there should be room, when a prompt of ``request_tokens`` finds the
        queue full. An empty queue takes every request, however long: its length was validated against the model's context."""
        caps = self.caps
        if load.requests == 0:
            return
        if load.requests >= caps.max_requests:
            excess = load.tokens / load.requests * (load.requests + 1 - caps.max_requests)
            problem, reason = f"{load.requests} requests wait, the limit is {caps.max_requests}", "requests"
        elif load.tokens + request_tokens > caps.max_tokens:
            excess = load.tokens + request_tokens - caps.max_tokens
            problem = f"{load.tokens} prompt tokens wait, {request_tokens} more exceed the limit of {caps.max_tokens}"
            reason = "tokens"
        else:
            return
        raise OverloadedError(problem, reason=reason, retry_after=_retry_after(excess, load.tokens_per_second))


def _retry_after(excess_tokens: float, tokens_per_second: float | None) -> float:
    if not tokens_per_second or tokens_per_second <= 0:
        return UNKNOWN_RETRY
    return min(MAX_RETRY, max(MIN_RETRY, excess_tokens / tokens_per_second))
