"""Admission as the server does it, from what its threads see of the scheduler."""

from __future__ import annotations

from loadtest.simulation.machine import Machine
from server.engine import GenerationRequest, RequestFinished
from server.scheduling.admission import Admission, Backlog


class Gate:
    """Asks the server's own caps and forecast. Keeps every prediction beside what came, to judge the forecast by."""

    def __init__(self, machine: Machine, admission: Admission | None, *, forecast: bool) -> None:
        """``admission`` None: no caps. ``forecast`` False: nobody is refused for what is only predicted."""
        self._machine = machine
        self._admission = admission
        self._forecast = forecast
        self._predicted: dict[int, float] = {}
        self.outcomes: list[tuple[float, float]] = []
        """(predicted, true) seconds to the first token, of whoever got one."""

    def check(self, request: GenerationRequest, now: float) -> None:
        """Raises OverloadedError where the server would."""
        stats, busy = self._machine.stats(), self._machine.busy_seconds
        if self._admission is not None:
            rate = stats.computed_tokens / busy if busy else 0.0
            standing = self._machine.standing(request.tenant)
            backlog = Backlog(sum(stats.waiting_by_class), stats.waiting_tokens, rate, *standing)
            self._admission.check(len(request.prompt), backlog)
        self._predicted[request.id] = self._machine.predict(request, now, refuse=self._forecast)

    def seen(self, event: RequestFinished) -> None:
        """A request is over."""
        predicted, truth = self._predicted.pop(event.request, None), event.timings.first_token
        if predicted is not None and truth is not None:
            self.outcomes.append((predicted, truth))

    def median_error(self) -> float | None:
        """Of the predictions, relative to what came."""
        errors = sorted(abs(predicted - truth) / truth for predicted, truth in self.outcomes if truth > 0.0)
        return errors[len(errors) // 2] if errors else None
