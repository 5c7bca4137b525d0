"""Notices when the engine is dead or stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from server.engine import Engine, EngineStats

PERIOD = 0.25
"""Seconds between two looks."""


class EngineWatchdog:
    """Reads the engine's own snapshot: no probe request that could itself wait behind traffic."""

    def __init__(self, engine: Engine, *, stuck_after: float) -> None:
        self._engine = engine
        self._stuck_after = stuck_after

    def verdict(self, stats: EngineStats) -> str | None:
        """What is wrong, in words for clients and operators; None when all is well."""
        if not stats.alive:
            return "the engine has died"
        if stats.step_running_for is not None and stats.step_running_for > self._stuck_after:
            return f"the engine is stuck: one step has been running for more than {self._stuck_after:g} s"
        # An idle loop beats about once a second: silence without a step means that it hangs between steps.
        if stats.step_running_for is None and (stats.last_step_age or 0.0) > self._stuck_after:
            return f"the engine is stuck: its loop has shown no life for more than {self._stuck_after:g} s"
        return None

    async def watch(self, report: Callable[[str], None]) -> None:
        """Look over and over; report the first trouble and return."""
        while True:
            wrong = self.verdict(self._engine.stats())
            if wrong is not None:
                report(wrong)
                return
            await asyncio.sleep(PERIOD)
