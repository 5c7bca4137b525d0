"""Whether a request may wait at all. Hard caps for now; a prediction of its first token's time can take this place."""

from __future__ import annotations

import msgspec

from server.errors import OverloadedError

SHORTEST_RETRY, LONGEST_RETRY = 0.1, 60.0
"""Seconds. A shorter delay would have clients hammer, a longer one is no longer an estimate."""


class Backlog(msgspec.Struct, frozen=True):
    """What waits, and how fast it is worked off."""

    requests: int
    """Requests without a seat."""
    tokens: int
    """Prompt tokens yet to be computed, waiting and running."""
    tokens_per_second: float
    """Tokens that the engine computes while it computes; 0 before its first step."""


class Admission:
    """Caps in requests and in tokens. Holds no state; any thread."""

    def __init__(self, *, max_waiting_requests: int, max_waiting_tokens: int) -> None:
        self.max_waiting_requests = max_waiting_requests
        self.max_waiting_tokens = max_waiting_tokens

    def check(self, prompt_tokens: int, backlog: Backlog) -> None:
        """Raises OverloadedError when this request would exceed a cap. An empty house admits whatever fits the engine."""
        if backlog.requests >= self.max_waiting_requests:
            raise OverloadedError(
                f"{backlog.requests} requests wait, the limit is {self.max_waiting_requests}",
                reason="waiting_requests",
                retry_after=self._retry_after(backlog),
            )
        if backlog.tokens and backlog.tokens + prompt_tokens > self.max_waiting_tokens:
            raise OverloadedError(
                f"{backlog.tokens} prompt tokens wait and this request has {prompt_tokens}, the limit is {self.max_waiting_tokens}",
                reason="waiting_tokens",
                retry_after=self._retry_after(backlog),
            )

    def _retry_after(self, backlog: Backlog) -> float:
        """The time in which the prompts that wait now will have been computed."""
        if not backlog.tokens_per_second:
            return SHORTEST_RETRY
        return min(LONGEST_RETRY, max(SHORTEST_RETRY, backlog.tokens / backlog.tokens_per_second))
