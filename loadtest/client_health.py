"""Whether the client itself was fast enough for its figures to be the server's."""

from __future__ import annotations

import asyncio
import time
from array import array

import msgspec
import numpy as np

TICK = 0.01
BUSY_SHARE = 0.85
"""Above this share of a core, a client process adds its own queueing to what it measures."""
LATE_SECONDS = 0.02
"""A 99th percentile of the client's own delay above this is not noise of timers."""


class ClientHealth(msgspec.Struct, frozen=True):
    """Of one client process, over the measured part of its run."""

    processor_share: float
    """Processor time over wall time: 1 = a whole core."""
    loop_lag_p50: float
    loop_lag_p99: float
    """Seconds by which the event loop woke late: what a message may have waited in the client before it was stamped."""
    loop_lag_max: float
    messages: int

    @property
    def limiting(self) -> bool:
        """This process was a bottleneck, or near it."""
        return self.processor_share > BUSY_SHARE or self.loop_lag_p99 > LATE_SECONDS


class HealthMonitor:
    """Samples its event loop's lateness; :meth:`health` may be asked once the run is over."""

    def __init__(self) -> None:
        self._lags = array("d")
        self._started = time.monotonic()
        self._processor = time.process_time()

    async def watch(self) -> None:
        """Run until cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK)
            self._lags.append(max(0.0, time.monotonic() - before - TICK))

    def restart(self) -> None:
        """Forget the warm-up."""
        self._lags = array("d")
        self._started = time.monotonic()
        self._processor = time.process_time()

    def health(self, messages: int) -> ClientHealth:
        wall = max(1e-9, time.monotonic() - self._started)
        lags = np.frombuffer(self._lags) if self._lags else np.zeros(1)
        p50, p99, top = (float(value) for value in np.percentile(lags, (50, 99, 100)))
        return ClientHealth((time.process_time() - self._processor) / wall, p50, p99, top, messages)
