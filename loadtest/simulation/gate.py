"""Admission as the server does it, from a snapshot of the scheduler."""

from __future__ import annotations

from server.engine import GenerationRequest, RequestFinished
from server.scheduling.admission import Admission, Backlog
from server.scheduling.counters import SchedulingStats


class Gate:
    """Asks the server's own admission; ``admission`` None lets everybody in, for comparison."""

    def __init__(self, admission: Admission | None) -> None:
        self._admission = admission

    def check(self, request: GenerationRequest, stats: SchedulingStats, busy_seconds: float, _now: float) -> None:
        """Raises OverloadedError where the server would."""
        if self._admission is None:
            return
        rate = stats.computed_tokens / busy_seconds if busy_seconds else 0.0
        self._admission.check(len(request.prompt), Backlog(sum(stats.waiting_by_class), stats.waiting_tokens, rate))

    def seen(self, event: RequestFinished) -> None:
        """A request is over."""
