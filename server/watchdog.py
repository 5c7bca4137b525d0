"""Notices when the engine is dead or stuck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from server.engine import Engine, EngineStats

PERIOD = 0.25
"""Seconds between two looks."""
ABSENCE = 1.0
"""A look this many seconds late means that the whole process stood still: a paused machine or container, a sleeping laptop. The engine
could not move either, so that time proves nothing against it."""


class EngineWatchdog:
    """Reads the engine's own snapshot: no probe request that could itself wait behind traffic."""

    def __init__(self, engine: Engine, *, stuck_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._stuck_after = stuck_after
        self._clock = clock
        self._looked: float | None = None
        self._absent = 0.0
        """Seconds of the present silence in which the process stood still."""

    def look(self) -> str | None:
        """What is wrong, in words for clients and operators; None when all is well. To be called every PERIOD."""
        now = self._clock()
        late = 0.0 if self._looked is None else now - self._looked - PERIOD
        self._looked = now
        stats = self._engine.stats()
        silence = _silence(stats)
        self._absent = min(silence, self._absent + (late if late > ABSENCE else 0.0))
        if not stats.alive:
            return "the engine has died"
        if silence - self._absent <= self._stuck_after:
            return None
        if stats.step_running_for is not None:
            return f"the engine is stuck: one step has been running for more than {self._stuck_after:g} s"
        return f"the engine is stuck: its loop has shown no life for more than {self._stuck_after:g} s"

    async def watch(self, report: Callable[[str], None]) -> None:
        """Look over and over; report the first trouble and return."""
        while True:
            wrong = self.look()
            if wrong is not None:
                report(wrong)
                return
            await asyncio.sleep(PERIOD)


def _silence(stats: EngineStats) -> float:
    """Seconds since the engine last showed life. An idle loop beats about once a second."""
    if stats.step_running_for is not None:
        return stats.step_running_for
    return stats.last_step_age or 0.0
