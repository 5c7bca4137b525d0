"""The share of recent time in which an engine computed."""

from __future__ import annotations

from math import exp

WINDOW = 10.0
"""Seconds after which what was counts for a third."""


class BusyShare:
    """An exponential average over time. One thread counts; any may ask."""

    def __init__(self, now: float) -> None:
        self._state = (now, 0.0)
        """When it was last brought up to date, and the share then; replaced as a whole."""

    def ended(self, now: float, seconds: float) -> None:
        """A step that took ``seconds`` has just ended."""
        self._state = (now, self._after(now, seconds))

    def at(self, now: float, running: float = 0.0) -> float:
        """The share now, 0 to 1; a step has been running for ``running`` seconds."""
        return self._after(now, running)

    def _after(self, now: float, busy: float) -> float:
        at, share = self._state
        passed = max(0.0, now - at)
        busy = min(passed, busy)
        idle_since = share * exp(-(passed - busy) / WINDOW)
        return 1.0 - (1.0 - idle_since) * exp(-busy / WINDOW)
