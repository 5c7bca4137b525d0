"""Time for the simulated engines: the machine's, or one that only moves when somebody waits."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds, monotonic. All methods may be called from any thread."""

    def now(self) -> float: ...

    def wait(self, until: float, wake: threading.Event) -> bool:
        """Return when ``until`` has come, or at once when ``wake`` is set; True means that it was set."""
        ...


class RealClock:
    """``time.monotonic``; waiting releases the interpreter's lock."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, until: float, wake: threading.Event) -> bool:
        return wake.wait(max(0.0, until - time.monotonic()))


class VirtualClock:
    """Starts at 0 and moves only by being waited on or advanced: a simulated hour costs no time and is the same every run."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._lock = threading.Lock()

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"seconds: time does not run backwards, got {seconds}")
        with self._lock:
            self._now += seconds

    def wait(self, until: float, wake: threading.Event) -> bool:
        if wake.is_set():
            return True
        with self._lock:
            self._now = max(self._now, until)
        return False
