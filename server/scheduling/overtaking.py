"""What will probably come and pass: who comes after a newcomer and goes before it, from what came lately.

Two kinds come later. *The rest of a burst*: in recorded traffic requests come many at an instant, and the first of them sees none of the
others. What comes after the k-th is what came after the k-th of the bursts before that had more: the median of them, since most of what is predicted is to
be right. *Later ones*: at the rate of what came lately, from when a burst is usually followed by the next. Of either, those pass whose
rank comes out lower:

    arrival + offset < own arrival + own offset;  offset = rank - arrival, as drawn from what came lately
    seconds = median over bursts of sum(work where offset < own) + rate * mean(work * (min(wait, own - offset) - gap)+)

Classes above pass whatever their rank, classes below never. Requests that all rank alike (first come, first served) are not asked about.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Sequence
from itertools import accumulate
from statistics import median
from typing import NamedTuple

from server.engine import PriorityClass

AT_ONCE = 0.005
"""Seconds from one arrival to the next within a burst."""
_ARRIVALS, _BURSTS = 256, 32
"""How many are remembered; of a burst no more than so many arrivals."""
_REDRAWN = 8
"""Arrivals after which the picture is drawn anew."""
_SOON = 0.1
"""Part of the bursts that are followed by the next sooner than the usual gap."""


class Later(NamedTuple):
    """Who will probably come."""

    passing: float = 0.0
    """Seconds of prompts of those who will pass."""
    passing_room: float = 0.0
    """Tokens that KV blocks are set aside for when those are seated."""
    passing_requests: int = 0
    """How many of the burst pass."""
    behind: float = 0.0
    """Seconds of those who come at the same instant and do not pass."""
    requests: int = 0
    """How many more come at this instant."""
    tokens: float = 0.0
    """Of their prompts, as far as they count for the step's pace."""


class _Arrival(NamedTuple):
    at: float
    level: int
    offset: float
    seconds: float
    tokens: int
    room: int

    def passes(self, level: int, offset: float) -> bool:
        return self.level < level or (self.level == level and self.offset < offset)


_Burst = tuple[_Arrival, ...]


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

    def during(self, offset: float, first: float, last: float) -> float:
        """Sum of seconds * (how much of the time from ``first`` to ``last`` one of them may come in and still pass)."""
        # Until own - theirs, or all the time where that is later than the last.
        always, at_all = bisect_left(self._offsets, offset - last), bisect_left(self._offsets, offset - first)
        partly = self._seconds[at_all] - self._seconds[always]
        weighted = self._seconds_by_offset[at_all] - self._seconds_by_offset[always]
        return (last - first) * self._seconds[always] + (offset - first) * partly - weighted


class Overtaking:
    """Learns on the engine's thread; asked on any: what it reads is replaced as a whole."""

    __slots__ = ("_arrivals", "_burst", "_bursts", "_gaps", "_picture", "_undrawn")

    def __init__(self) -> None:
        self._arrivals: deque[_Arrival] = deque(maxlen=_ARRIVALS)
        self._burst: _Burst = ()
        """The one that comes now, or came last."""
        self._bursts: tuple[_Burst, ...] = ()
        """Those before it, the oldest first."""
        self._gaps: deque[float] = deque(maxlen=_BURSTS)
        self._undrawn = 0
        self._picture: _Picture | None = None

    def arrived(self, at: float, level: int, rank: float, *, seconds: float, tokens: int, room: int) -> None:
        """A request came whose prompt takes so long to compute, has ``tokens`` that count for the pace, and takes ``room`` with its seat. O(bursts
        remembered and size of its own), and every few arrivals O(arrivals remembered)."""
        arrival = _Arrival(at, level, rank - at, seconds, tokens, room)
        if not _coming(self._burst, at):
            if self._burst:
                self._bursts = _latest((*self._bursts, self._burst))
                self._gaps.append(at - self._burst[0].at)
            self._burst = ()
        if len(self._burst) < _ARRIVALS:
            self._burst = (*self._burst, arrival)
        self._arrivals.append(arrival)
        self._undrawn += 1
        if self._undrawn >= _REDRAWN:
            self._undrawn = 0
            self._picture = _Picture(self._arrivals, self._gaps)

    def expect(self, at: float, level: int, rank: float, wait: float) -> Later:
        """Of a newcomer of this rank that would wait so long if nobody came. Nobody, where too little has been seen. Any thread; O(arrivals
        remembered)."""
        bursts, burst, picture = self._bursts, self._burst, self._picture
        before = len(burst) if _coming(burst, at) else 0
        known = bursts if before else (*bursts, burst)
        rests = [each[before + 1 :] for each in known if len(each) > before]
        later = _typical(rests, level, rank - at, wait) if rests else Later()
        return later if picture is None else picture.add_later(later, level, rank - at, wait)


class _Picture:
    """Of who comes by and by."""

    __slots__ = ("_classes", "_gap", "_rate", "_room", "_total")

    def __init__(self, arrivals: Sequence[_Arrival], gaps: Collection[float]) -> None:
        self._classes = [_Class([one for one in arrivals if one.level == level]) for level in PriorityClass]
        self._total = len(arrivals)
        span = arrivals[-1].at - arrivals[0].at
        self._rate = len(arrivals) / span if span > 0.0 else 0.0
        self._gap = sorted(gaps)[int(_SOON * len(gaps))] if gaps else 0.0
        seconds = sum(one.seconds for one in arrivals)
        self._room = sum(one.room for one in arrivals) / seconds if seconds > 0.0 else 0.0
        """Tokens that seats take, for each second of prompts."""

    def add_later(self, later: Later, level: int, offset: float, wait: float) -> Later:
        """Those who come after this instant and pass, too."""
        if wait <= self._gap:
            return later
        above = sum(each.all for each in self._classes[:level])
        passing = self._classes[level].during(offset, self._gap, wait) + (wait - self._gap) * above
        passing *= self._rate / self._total
        return later._replace(passing=later.passing + passing, passing_room=later.passing_room + passing * self._room)


def _coming(burst: _Burst, at: float) -> bool:
    """Whether who comes now belongs to it."""
    return bool(burst) and at - burst[-1].at <= AT_ONCE


def _latest(bursts: tuple[_Burst, ...]) -> tuple[_Burst, ...]:
    """As many of the last ones as make up the arrivals that are remembered."""
    first, size = len(bursts), 0
    while first > max(0, len(bursts) - _BURSTS) and size < _ARRIVALS:
        first -= 1
        size += len(bursts[first])
    return bursts[first:]


def _typical(rests: Sequence[_Burst], level: int, offset: float, wait: float) -> Later:
    """Of what came after the same place of bursts before. Of the seconds that passed the one with the least relative error of the whole wait: the median
    where each counts the less the longer it makes that."""
    passing = [[one for one in rest if one.passes(level, offset)] for rest in rests]
    seconds = [sum(one.seconds for one in passed) for passed in passing]
    everybody = [sum(one.seconds for one in rest) for rest in rests]
    return Later(
        passing=_weighted_median([(each, 1.0 / (wait + each)) for each in seconds if wait + each > 0.0]),
        passing_room=median(sum(one.room for one in passed) for passed in passing),
        passing_requests=round(median(map(len, passing))),
        behind=median(each - passed for each, passed in zip(everybody, seconds, strict=True)),
        requests=round(median(map(len, rests))),
        tokens=median(sum(one.tokens for one in rest) for rest in rests),
    )


def _weighted_median(values: list[tuple[float, float]]) -> float:
    """Of (value, weight)."""
    half, found = sum(weight for _, weight in values) / 2, 0.0
    for value, weight in sorted(values):
        found, half = value, half - weight
        if half <= 0.0:
            break
    return found
