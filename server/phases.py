"""What the start of the server consists of, and how long each part took."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import structlog

log = structlog.get_logger(__name__)


_START_TIME = 19
"""Of the fields behind the command's name in /proc/self/stat (proc(5): starttime, in clock ticks since the machine started)."""


def process_age() -> float:
    """Seconds since the operating system started this process.

    On Linux out of the kernel's own two numbers. Elsewhere through the wall clock's time of boot, which is known to the second only.
    """
    if sys.platform != "linux":
        return max(0.0, time.time() - psutil.Process().create_time())
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    started = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


class Phases:
    """Measures each phase once. Phases may overlap, as the engine's load does with imports and ports. Any thread."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Time a block. Nothing is recorded when it raises."""
        began = time.perf_counter()
        yield
        self.record(phase, time.perf_counter() - began)

    def record(self, phase: str, seconds: float) -> None:
        self._seconds[phase] = seconds
        log.info("started", phase=phase, seconds=round(seconds, 3))

    def since_exec(self, phase: str) -> None:
        """Record the time since the operating system started this process."""
        self.record(phase, process_age())

    @property
    def seconds(self) -> dict[str, float]:
        """Phase to seconds, in the order in which they ended."""
        return dict(self._seconds)
