"""The engine thread's heartbeat and its time account. Written by the engine thread alone; any thread may read.

Each field is one machine word's assignment under the interpreter lock, so readers need no lock of ours.
"""

from __future__ import annotations

from collections.abc import Callable

from server.busy_share import BusyShare


class Pulse:
    """When the loop last showed life, and where its time went (seconds)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_turn: float | None = None
        self._step_started: float | None = None
        self.steps = 0
        self.plan_seconds = 0.0
        self.engine_seconds = 0.0
        self.sample_seconds = 0.0
        self.deliver_seconds = 0.0
        self._busy = BusyShare(clock())

    def beat(self) -> None:
        """The loop turned: it is alive, whether or not there was work."""
        self._last_turn = self._clock()

    def step_started(self) -> None:
        self._step_started = self._clock()

    def step_ended(self, engine_seconds: float, sample_seconds: float) -> None:
        self._step_started = None
        self.steps += 1
        self.engine_seconds += engine_seconds
        self.sample_seconds += sample_seconds
        self.beat()
        self._busy.ended(self._clock(), engine_seconds + sample_seconds)

    def step_failed(self) -> None:
        self._step_started = None
        self.beat()

    @property
    def age(self) -> float | None:
        """Seconds since the last beat."""
        return None if self._last_turn is None else self._clock() - self._last_turn

    @property
    def busy(self) -> float:
        """Share of the recent time in which the engine computed."""
        return self._busy.at(self._clock(), self.running_for or 0.0)

    @property
    def running_for(self) -> float | None:
        """Seconds that the current step has been running."""
        started = self._step_started
        return None if started is None else self._clock() - started
