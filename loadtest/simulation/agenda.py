"""What is to happen when, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

Act = Callable[[float], None]
"""Called with the moment it was meant for."""


class Agenda:
    """Moments in order; those of equal time in the order in which they were put down. A source of ascending moments is
    drawn from as it is needed, so that a trace need not lie in memory as acts."""

    def __init__(self, source: Iterator[tuple[float, Act]]) -> None:
        self._source = source
        self._heap: list[tuple[float, int, Act]] = []
        self._count = 0
        self._draw()

    def at(self, time: float, act: Act) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, act))

    @property
    def next(self) -> float | None:
        """The earliest moment; None when nothing is to come."""
        return self._heap[0][0] if self._heap else None

    def until(self, now: float) -> None:
        """Do all whose time has come, the new ones that this brings included."""
        while self._heap and self._heap[0][0] <= now:
            time, _, act = heapq.heappop(self._heap)
            act(time)

    def _draw(self) -> None:
        head = next(self._source, None)
        if head is None:
            return
        time, act = head

        def do(moment: float) -> None:
            self._draw()
            act(moment)

        self.at(time, do)
