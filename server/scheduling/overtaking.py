"""What will probably come and pass: who comes after a newcomer and goes before it, from what came lately.

Two kinds come later. *The rest of a burst*: in recorded traffic requests come many at an instant, and the first of them sees none of the
others. How many more come after the k-th is learned from how large bursts turned out that had k at least. *Later ones*: at the rate of what
came lately, from when a burst is usually followed by the next. Of either, those pass whose rank comes out lower:

    arrival + offset < own arrival + own offset;  offset = rank - arrival, as drawn from what came lately
    seconds = rest * mean(work where offset < own) + rate * mean(work * (min(wait, own - offset) - gap)+)

Classes above pass whatever their rank, classes below never. Requests that all rank alike (first come, first served) are not asked about.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from server.engine import PriorityClass

AT_ONCE = 0.005
"""Seconds from one arrival to the next within a burst."""
_ARRIVALS, _BURSTS = 256, 32
"""How many are remembered."""
_REDRAWN = 8
"""Arrivals after which the picture is drawn anew."""
_SOON = 0.1
"""Part of the bursts that are followed by the next sooner than the usual gap."""


class _Arrival(NamedTuple):
    at: float
    level: int
    offset: float
    seconds: float


class _Class:
    """What came lately of one class, by offset, with running sums."""

    __slots__ = ("_offsets", "_seconds", "_seconds_by_offset", "all")

    def __init__(self, arrivals: list[_Arrival]) -> None:
        arrivals.sort(key=lambda one: one.offset)
        self._offsets = [one.offset for one in arrivals]
        self._seconds = [0.0, *accumulate(one.seconds for one in arrivals)]
        self._seconds_by_offset = [0.0, *accumulate(one.seconds * one.offset for one in arrivals)]
        self.all = self._seconds[-1]
        """Seconds of all of them."""

    def below(self, offset: float) -> float:
        """Seconds of all of a lower offset."""
        return self._seconds[bisect_left(self._offsets, offset)]

    def during(self, offset: float, first: float, last: float) -> float:
        """Sum of seconds * (how much of the time from ``first`` to ``last`` one of them may come in and still pass)."""
        # Until own - theirs, or all the time where that is later than the last.
        always, at_all = bisect_left(self._offsets, offset - last), bisect_left(self._offsets, offset - first)
        partly = self._seconds[at_all] - self._seconds[always]
        weighted = self._seconds_by_offset[at_all] - self._seconds_by_offset[always]
        return (last - first) * self._seconds[always] + (offset - first) * partly - weighted


class Overtaking:
    """Learns on the engine's thread; asked on any: what it reads is replaced as a whole."""

    __slots__ = ("_arrivals", "_began", "_bursts", "_gaps", "_last", "_picture", "_size", "_undrawn")

    def __init__(self) -> None:
        self._arrivals: deque[_Arrival] = deque(maxlen=_ARRIVALS)
        self._bursts: deque[int] = deque(maxlen=_BURSTS)
        self._gaps: deque[float] = deque(maxlen=_BURSTS)
        self._size = 0
        self._began = self._last = float("-inf")
        self._undrawn = 0
        self._picture: _Picture | None = None

    def arrived(self, at: float, level: int, rank: float, seconds: float) -> None:
        """A request came whose prompt takes so long to compute. O(1), and every few arrivals O(arrivals remembered)."""
        if at - self._last > AT_ONCE:
            if self._size:
                self._bursts.append(self._size)
                self._gaps.append(at - self._began)
            self._size, self._began = 0, at
        self._size += 1
        self._last = at
        self._arrivals.append(_Arrival(at, level, rank - at, seconds))
        self._undrawn += 1
        if self._undrawn >= _REDRAWN:
            self._undrawn = 0
            self._picture = _Picture(self._arrivals, self._bursts, self._gaps)

    def expect(self, at: float, level: int, rank: float, wait: float) -> tuple[float, float]:
        """Seconds of prompts of whoever will pass a newcomer of this rank that waits so long, and of whoever will come with it and not
        pass. Nobody, where too little has been seen. Any thread; O(log arrivals remembered)."""
        picture = self._picture
        if picture is None:
            return 0.0, 0.0
        before = self._size if at - self._last <= AT_ONCE else 0
        return picture.expect(before, level, rank - at, wait)


class _Picture:
    __slots__ = ("_classes", "_gap", "_rate", "_rests", "_total")

    def __init__(self, arrivals: Sequence[_Arrival], bursts: Iterable[int], gaps: Collection[float]) -> None:
        self._classes = [_Class([one for one in arrivals if one.level == level]) for level in PriorityClass]
        self._total = len(arrivals)
        span = arrivals[-1].at - arrivals[0].at
        self._rate = len(arrivals) / span if span > 0.0 else 0.0
        self._gap = sorted(gaps)[int(_SOON * len(gaps))] if gaps else 0.0
        self._rests = rests(sorted(bursts))

    def expect(self, before: int, level: int, offset: float, wait: float) -> tuple[float, float]:
        """``before``: how many of its burst have come already."""
        rest = self._rests[min(before, len(self._rests) - 1)] / self._total
        own, above = self._classes[level], sum(each.all for each in self._classes[:level])
        passing = rest * (own.below(offset) + above)
        behind = rest * sum(each.all for each in self._classes) - passing
        if wait > self._gap:
            later = own.during(offset, self._gap, wait) + (wait - self._gap) * above
            passing += self._rate * later / self._total
        return passing, behind


def rests(sizes: Sequence[int]) -> list[int]:
    """How many more usually come (the median, since most of what is predicted is to be right) after the k-th of a burst, k from 1 at place
    0. ``sizes`` ascending; beyond the largest nobody comes."""
    found = []
    for place in range(1, sizes[-1] + 1 if sizes else 1):
        first = bisect_left(sizes, place)
        found.append(sizes[(first + len(sizes)) // 2] - place)
    return [*found, 0]
