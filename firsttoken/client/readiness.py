"""Asking the standard health service until the server is ready: shared by both clients."""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2

from firsttoken.client.statuses import error_of
from firsttoken.errors import CallError, UnavailableError

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_ATTEMPT_TIMEOUT = 5.0


class ReadinessPoll:
    """One wait for readiness. Pauses grow from 20 ms to half a second."""

    def __init__(self, address: str, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.request = health_pb2.HealthCheckRequest()
        self.ready = False
        self._address = address
        self._timeout = timeout
        self._clock = clock
        self._deadline = clock() + timeout
        self._pause = _FIRST_PAUSE
        self._seen = "no answer"

    def attempt_timeout(self) -> float:
        return max(0.001, min(_ATTEMPT_TIMEOUT, self._deadline - self._clock()))

    def answered(self, reply: health_pb2.HealthCheckResponse) -> None:
        self.ready = reply.status == health_pb2.HealthCheckResponse.SERVING
        self._seen = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)

    def failed(self, failure: grpc.RpcError) -> None:
        """Note why there was no answer. Raises its CallError where waiting cannot help (no health service, no access)."""
        error: CallError = error_of(failure)
        if error.status not in {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}:
            raise error from failure
        self._seen = error.message

    def pause(self) -> float:
        """Seconds until the next question; 0 when ready. Raises UnavailableError when the time is up."""
        if self.ready:
            return 0.0
        left = self._deadline - self._clock()
        if left <= 0:
            raise UnavailableError(
                f"{self._address} is not ready after {self._timeout:g} s: {self._seen}", status="UNAVAILABLE"
            )
        pause = min(self._pause, left)
        self._pause = min(_LONGEST_PAUSE, self._pause * 2)
        return pause
