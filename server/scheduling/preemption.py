"""When a running sequence gives way to a higher class, and how often that may be."""

from __future__ import annotations

from collections.abc import Iterable

from server.scheduling.sequence import Sequence


class PreemptionGuard:
    """Chooses who gives way to a class above: the lowest class, who came last, never whoever was seated for its class's share.

    Two bounds, since what a preemption loses is computed twice: each request gives way ``per_request`` times, all together ``per_second``
    times a second, with bursts of as many (a token bucket). Engine thread only.
    """

    __slots__ = ("_last", "_left", "_per_request", "_per_second")

    def __init__(self, *, per_request: int, per_second: float) -> None:
        """``per_second`` 0 = no class ever gives way."""
        self._per_request = per_request
        self._per_second = per_second
        self._left = self._burst
        self._last = 0.0

    @property
    def _burst(self) -> float:
        return max(1.0, self._per_second) if self._per_second > 0.0 else 0.0

    def victim(self, head: Sequence, seated: Iterable[Sequence], now: float) -> Sequence | None:
        """Who gives way to ``head``, counted against the bounds; None where nobody may."""
        self._left = min(self._burst, self._left + max(0.0, now - self._last) * self._per_second)
        self._last = max(self._last, now)
        if self._left < 1.0:
            return None
        level = head.key[0]
        candidates = [
            sequence
            for sequence in seated
            if sequence.key[0] > level and not sequence.owed and sequence.record.preemptions < self._per_request
        ]
        if not candidates:
            return None
        self._left -= 1.0
        return max(candidates, key=lambda sequence: sequence.key)
