"""What watches the process itself: how late the event loop is, how long threads wait for the interpreter, its collections, the GPUs."""

from __future__ import annotations

import asyncio

from server.telemetry.interpreter_wait import InterpreterWait
from server.telemetry.loop_lag import watch_loop_lag
from server.telemetry.metrics import Metrics


class Probes:
    """Event loop only."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._wait = InterpreterWait(metrics.interpreter_wait.observe)
        self._lag: asyncio.Task[None] | None = None

    def start(self) -> None:
        """When the start is over: what an import or a load holds up is nobody's wait."""
        self._lag = asyncio.get_running_loop().create_task(watch_loop_lag(self._metrics.loop_lag.observe))
        self._wait.start()
        self._metrics.gc_pauses.install()
        self._metrics.devices.start()

    async def close(self) -> None:
        """Idempotent, and right where nothing was started."""
        if self._lag is not None:
            self._lag.cancel()
            await asyncio.gather(self._lag, return_exceptions=True)
        self._wait.close()
        self._metrics.gc_pauses.remove()
        self._metrics.devices.close()
