"""How often something happens, lately."""

from __future__ import annotations

from math import exp

_MEMORY = 10.0
"""Seconds after which what happened counts 1/e."""


class RateMeter:
    """Events per second, lately. One writer."""

    __slots__ = ("_last", "_rate", "_since")

    def __init__(self) -> None:
        self._rate = 0.0
        self._last: float | None = None
        self._since = 0.0

    def count(self, now: float) -> None:
        """It happened."""
        if self._last is None:
            self._since = now
        else:
            self._rate *= exp(-max(0.0, now - self._last) / _MEMORY)
        self._last = now
        self._rate += 1.0 / _MEMORY

    def per_second(self) -> float:
        """As of the last event. Corrected for a young meter, which has not seen a whole memory yet."""
        if self._last is None:
            return 0.0
        seen = 1.0 - exp(-max(1.0, self._last - self._since) / _MEMORY)
        return self._rate / seen
