"""When a failed call may be sent again, and after how long.

Only what certainly did no work is repeated: the connection failed, or the server refused the request (overload, drain), and
neither headers nor a message had come. Headers mean that the server has taken the request in.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from firsttoken.client.statuses import error_of
from firsttoken.errors import CallCancelledError, CallError, DeadlineError, OverloadedError, UnavailableError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently. The server's own delay, where it gives one, goes before the back-off."""

    attempts: int = 4
    """Times that a call is sent, the first included; 1 = never retry."""
    first_delay: float = 0.1
    """Seconds before the second attempt; doubled for each further one, and drawn between a half and the whole."""
    max_delay: float = 5.0
    """Longest back-off, in seconds."""
    max_retry_after: float = 30.0
    """A longer delay asked for by the server is not waited out: the error is raised."""


_WORDLESS = (None, "", "CANCELLED")
"""Details of a call that gRPC itself ended; the server's own, and a cancel of this client's, say why."""
NO_RETRIES = RetryPolicy(attempts=1)


class Attempts:
    """The attempts of one call. Not thread-safe."""

    def __init__(
        self,
        policy: RetryPolicy,
        timeout: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._draw = draw
        self._deadline = None if timeout is None else clock() + timeout
        self._made = 1

    def remaining(self) -> float | None:
        """Seconds left for the call, at least 0; None = no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def next_delay(self, failure: grpc.RpcError, *, taken: bool) -> float:
        """Seconds to wait before sending the call again. Raises the failure's CallError where it must not be sent again.

        ``taken``: headers or a message had come.
        """
        error = self._error_of(failure, taken=taken)
        if taken or self._made >= self._policy.attempts or not _refused(error):
            raise error from failure
        delay = self._delay(error)
        remaining = self.remaining()
        if delay is None or (remaining is not None and delay >= remaining):
            raise error from failure
        self._made += 1
        return delay

    def _error_of(self, failure: grpc.RpcError, *, taken: bool) -> CallError:
        """What gRPC calls CANCELLED may be neither the caller's wish nor the operator's.

        A call that the server cut off at its deadline arrives as a bare reset, which gRPC calls so when it hears of it before it has
        looked at its own clock: on a starved machine. By then the deadline has passed here, too. And a port that stops ends those calls so
        that came in its last moments, before any handler of the server saw them.
        """
        error = error_of(failure)
        if not isinstance(error, CallCancelledError):
            return error
        if self.remaining() == 0.0:
            return DeadlineError("the call's deadline passed", status="DEADLINE_EXCEEDED")
        if not taken and failure.details() in _WORDLESS:
            return UnavailableError("the server stopped before it took the call in", status="UNAVAILABLE")
        return error

    def _delay(self, error: CallError) -> float | None:
        if error.retry_after is not None:
            # Everybody was told the same delay: coming back all at once would be refused all at once.
            within = error.retry_after <= self._policy.max_retry_after
            return error.retry_after * self._draw(1.0, 1.25) if within else None
        back_off = min(self._policy.max_delay, self._policy.first_delay * float(2 ** (self._made - 1)))
        return back_off * self._draw(0.5, 1.0)


def _refused(error: CallError) -> bool:
    """Whether trying again can help. RESOURCE_EXHAUSTED without a delay is a size limit: the next attempt fails as well."""
    if isinstance(error, OverloadedError):
        return error.retry_after is not None
    return isinstance(error, UnavailableError)
