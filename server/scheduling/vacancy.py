"""How long until a prompt is through where seats or KV blocks are short: nobody computes before it is seated, and nobody is before others end.

The same shares as in contention.py, from event to event. Whoever waits is seated in order, as soon as a seat and its blocks are free; who cannot
be holds up all behind it. A prompt that is through streams, a token a step, for as long as its answer will probably be; then its seat and its
blocks are free again. Steps pass quickly while no prompt is computed, and slowly while some are.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from server.scheduling.contention import NOTHING, Job, Through, shares_of_step
from server.scheduling.outlook import Streaming

MOST_STREAMS = 64


class Room(NamedTuple):
    """What is free, and what will be."""

    seats: int
    blocks: int
    streams: Sequence[Streaming]
    """Ascending."""


def in_groups(streams: Iterable[Streaming]) -> list[Streaming]:
    """Ascending; of very many as many neighbours count as one, which ends when the middle one of them does, that a course has no more events."""
    ordered = sorted(streams)
    size = -(-len(ordered) // MOST_STREAMS)
    if size <= 1:
        return ordered
    groups = [ordered[first : first + size] for first in range(0, len(ordered), size)]
    return [
        Streaming(group[len(group) // 2].rest, sum(one.blocks for one in group), sum(one.seats for one in group))
        for group in groups
    ]


def until_seated_and_through(
    ahead: Sequence[Job], own: Job, behind: Sequence[Job], parts: int, *, given: float, room: Room
) -> Through:
    """As until_through, in a room that is short. ``given``: seconds of prompts in a step. O(events * log events + jobs * parts), where events
    are the completions and ends until then."""
    course = _Course([*ahead, own, *behind], parts, given, room)
    return course.until(len(ahead))


class _Course:
    """What will happen, one event after the other."""

    __slots__ = (
        "_blocks",
        "_ends",
        "_given",
        "_idle",
        "_jobs",
        "_left",
        "_living",
        "_parts",
        "_queue",
        "_seats",
        "_spent",
        "_step",
    )

    def __init__(self, jobs: Sequence[Job], parts: int, given: float, room: Room) -> None:
        self._jobs, self._parts, self._given = jobs, parts, given
        self._left = [job.seconds for job in jobs]
        self._living = [at for at, job in enumerate(jobs) if job.seated]
        """Seated and not through, in order."""
        self._queue = [at for at, job in enumerate(jobs) if not job.seated]
        self._queue.reverse()
        self._seats, self._blocks = room.seats, room.blocks
        self._ends = list(room.streams)
        """A heap: what is sorted is one."""
        self._step = self._spent = self._idle = 0.0
        """Steps so far; seconds of prompts computed; steps in which there were none."""

    def until(self, place: int) -> Through:
        self._seat()
        while self._left[place] > NOTHING:
            if self._living:
                self._compute()
            else:
                self._end_one()
        return Through(self._spent, sum(self._left[at] for at in self._living), self._idle)

    def _seat(self) -> None:
        """Whoever fits, in order. The only one in the house always does."""
        while self._queue:
            job = self._jobs[self._queue[-1]]
            occupied = self._ends or self._living
            if occupied and (self._seats < job.seats or self._blocks < job.blocks):
                return
            self._seats -= job.seats
            self._blocks -= job.blocks
            insort(self._living, self._queue.pop())

    def _compute(self) -> None:
        """Until the first prompt is through, or somebody ends for whom others wait."""
        shares = shares_of_step(self._jobs, self._living, self._parts)
        span, ends = min(self._left[at] / share for at, share in shares), False
        if self._queue and self._ends:
            left = max(0.0, (self._ends[0][0] - self._step) * self._given)
            span, ends = min(span, left), left < span
        self._spent += span
        self._step += span / self._given
        for at, share in shares:
            self._left[at] -= span * share
            if self._left[at] <= NOTHING:
                self._left[at] = 0.0
                self._living.remove(at)
                job = self._jobs[at]
                heapq.heappush(self._ends, Streaming(self._step + job.output, job.blocks, job.seats))
        if ends:
            self._end_one()

    def _end_one(self) -> None:
        end, blocks, seats = heapq.heappop(self._ends)
        if end > self._step:
            self._idle += end - self._step
            self._step = end
        self._seats += seats
        self._blocks += blocks
        self._seat()
