"""Which requests an engine has taken and not yet ended, so that each ends exactly once, even when the engine dies."""

from __future__ import annotations

import threading

from server.engine import Event, FinishReason, GenerationRequest, RequestFinished, Timings
from server.errors import UnavailableError


class EngineLife:
    """The register of live requests, and the count of those that ever entered. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[int, GenerationRequest] = {}
        self._closed_because: str | None = None
        self.entered_requests = 0
        self.entered_tokens = 0

    @property
    def alive(self) -> bool:
        return self._closed_because is None

    def enter(self, request: GenerationRequest) -> None:
        """Raises UnavailableError once the engine is closing or dead: nothing enters that nobody would end."""
        with self._lock:
            if self._closed_because is not None:
                raise UnavailableError(self._closed_because)
            self._live[request.id] = request
            self.entered_requests += 1
            self.entered_tokens += len(request.prompt)

    def leave(self, events: list[Event]) -> None:
        """Strike off the requests that ended."""
        live = self._live
        for event in events:
            if type(event) is RequestFinished:
                live.pop(event.request, None)

    def end_all(self, reason: FinishReason, because: str, now: float) -> list[Event]:
        """Close the register and end all that is in it. ``because`` is told to whoever comes later."""
        with self._lock:
            self._closed_because = because
            ended = [_ended(request, reason, now) for request in self._live.values()]
            self._live.clear()
        return ended


def _ended(request: GenerationRequest, reason: FinishReason, now: float) -> Event:
    timings = Timings(queued=None, prefill=None, first_token=None, total=now - request.arrival)
    return RequestFinished(
        request=request.id, reason=reason, prompt_tokens=len(request.prompt), cached_tokens=0, timings=timings
    )
