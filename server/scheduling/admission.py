"""Whether a request may wait at all. Hard caps for now; a prediction of its first token's time can take this place.

Pure: whoever counts what waits passes the counts in, so any thread may ask, before anything expensive is done for a request.
"""

from __future__ import annotations

import msgspec

from server.errors import OverloadedError

SHORTEST_RETRY, LONGEST_RETRY = 0.1, 60.0
"""Seconds. A shorter delay would have clients hammer, a longer one is no longer an estimate."""
UNMEASURED_RETRY = 1.0
"""Seconds, before the engine has run a step."""


class Backlog(msgspec.Struct, frozen=True):
    """What waits, and how fast it is worked off."""

    requests: int
    """Requests without a seat."""
    tokens: int
    """Prompt tokens yet to be computed, waiting and running."""
    tokens_per_second: float
    """Tokens that the engine computes while it computes; 0 before its first step."""
    tenant_requests: int = 0
    """Of ``requests``, those of the tenant that asks."""
    tenants: int = 1
    """Tenants that wait, the asking one included."""


class Admission:
    """Caps in requests and in tokens. Holds no state; any thread.

    A cap in tokens is a promise about the time to first token: set it to the target times the rate at which prompts are computed.
    """

    def __init__(self, *, max_waiting_requests: int, max_waiting_tokens: int) -> None:
        """Raises ValueError for a cap below 1."""
        for name, value in (("max_waiting_requests", max_waiting_requests), ("max_waiting_tokens", max_waiting_tokens)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        self.max_waiting_requests = max_waiting_requests
        self.max_waiting_tokens = max_waiting_tokens

    def check(self, prompt_tokens: int, backlog: Backlog) -> None:
        """Raises OverloadedError, with the delay after which there should be room, when this request would exceed a cap.

        A tenant that has less than its part of the requests waiting is admitted beyond the caps, up to twice their size.
        Where no prompt is left to compute, any request is admitted that fits the engine, however long.
        """
        if self._is_owed(backlog):
            return
        if backlog.requests >= self.max_waiting_requests:
            too_many = backlog.requests + 1 - self.max_waiting_requests
            raise OverloadedError(
                f"{backlog.requests} requests wait, the limit is {self.max_waiting_requests}",
                reason="waiting_requests",
                retry_after=_retry_after(too_many * backlog.tokens / backlog.requests, backlog.tokens_per_second),
            )
        if backlog.tokens and backlog.tokens + prompt_tokens > self.max_waiting_tokens:
            # A prompt longer than the cap fits once nothing waits, and no sooner.
            excess = min(backlog.tokens, backlog.tokens + prompt_tokens - self.max_waiting_tokens)
            raise OverloadedError(
                f"{backlog.tokens} prompt tokens wait and this request has {prompt_tokens}, the limit is {self.max_waiting_tokens}",
                reason="waiting_tokens",
                retry_after=_retry_after(excess, backlog.tokens_per_second),
            )

    def _is_owed(self, backlog: Backlog) -> bool:
        """A cap that one tenant has filled does not shut out the others: each has its part of it, up to twice the cap in all."""
        part = self.max_waiting_requests / backlog.tenants
        within = backlog.requests < 2 * self.max_waiting_requests and backlog.tokens < 2 * self.max_waiting_tokens
        return backlog.tenants > 1 and backlog.tenant_requests < part and within


def _retry_after(excess_tokens: float, tokens_per_second: float) -> float:
    """Seconds in which what is too much will have been computed."""
    if tokens_per_second <= 0:
        return UNMEASURED_RETRY
    return min(LONGEST_RETRY, max(SHORTEST_RETRY, excess_tokens / tokens_per_second))
