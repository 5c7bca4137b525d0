"""Who waits, in the order in which they will be seated."""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

from server.engine import PriorityClass
from server.kv.block_pool import IntegrityError

_COMPACT_ABOVE = 64


class Waiter(Protocol):
    """What the room needs of whoever waits in it. ``queued`` is written by the room alone."""

    queued: bool

    @property
    def key(self) -> tuple[float, ...]:
        """Unique and never changing; its first element is the class."""
        ...

    @property
    def waiting_work(self) -> int:
        """Tokens to compute before its next token. Must not change while it waits."""
        ...


W = TypeVar("W", bound=Waiter)


class WaitingRoom(Generic[W]):
    """One heap a class, by key; classes strictly in their order. push and pop O(log n), remove O(1) amortised, peek O(1) amortised.

    A removed entry stays in its heap until it comes to the top or outnumbers the living; the count is exact at all times.
    Who comes back after a preemption brings its old key, and so its old place. Engine thread only.
    """

    __slots__ = ("_counts", "_heaps", "_work")

    def __init__(self) -> None:
        self._heaps: dict[int, list[tuple[tuple[float, ...], W]]] = {int(c): [] for c in PriorityClass}
        self._counts = [0] * len(PriorityClass)
        self._work = 0

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def by_class(self) -> tuple[int, int, int]:
        interactive, standard, batch = self._counts
        return interactive, standard, batch

    @property
    def work(self) -> int:
        """Sum of the waiters' work, in tokens."""
        return self._work

    def push(self, waiter: W) -> None:
        level = int(waiter.key[0])
        heapq.heappush(self._heaps[level], (waiter.key, waiter))
        waiter.queued = True
        self._counts[level] += 1
        self._work += waiter.waiting_work

    def peek(self) -> W | None:
        """Who is next; None when nobody waits."""
        for level, heap in self._heaps.items():
            if not self._counts[level]:
                continue
            while not heap[0][1].queued:
                heapq.heappop(heap)
            return heap[0][1]
        return None

    def pop(self) -> W:
        """Take who is next. Raises IndexError when nobody waits."""
        waiter = self.peek()
        if waiter is None:
            raise IndexError("nobody waits")
        self._leave(waiter)
        heapq.heappop(self._heaps[int(waiter.key[0])])
        return waiter

    def remove(self, waiter: W) -> None:
        """Take out a waiter from anywhere."""
        level = int(waiter.key[0])
        self._leave(waiter)
        heap = self._heaps[level]
        if len(heap) > 2 * self._counts[level] + _COMPACT_ABOVE:
            heap[:] = [entry for entry in heap if entry[1].queued]
            heapq.heapify(heap)

    def _leave(self, waiter: W) -> None:
        waiter.queued = False
        self._counts[int(waiter.key[0])] -= 1
        self._work -= waiter.waiting_work

    def check_integrity(self) -> None:
        """Counts and work equal what is in the heaps. O(n)."""
        work = 0
        for level, heap in self._heaps.items():
            living = {id(waiter): waiter for _, waiter in heap if waiter.queued}
            work += sum(waiter.waiting_work for waiter in living.values())
            if len(living) != self._counts[level]:
                raise IntegrityError(f"class {level}: {len(living)} wait, counted {self._counts[level]}")
            if any(int(waiter.key[0]) != level for waiter in living.values()):
                raise IntegrityError(f"class {level}: a waiter of another class")
        if work != self._work:
            raise IntegrityError(f"waiting work is {work} tokens, counted {self._work}")
