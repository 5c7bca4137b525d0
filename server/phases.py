"""What the start of the server consists of, and how long each part took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import psutil
import structlog

log = structlog.get_logger(__name__)


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
        self.record(phase, max(0.0, time.time() - psutil.Process().create_time()))

    @property
    def seconds(self) -> dict[str, float]:
        """Phase to seconds, in the order in which they ended."""
        return dict(self._seconds)
