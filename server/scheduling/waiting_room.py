"""Who waits, in the order in which they will be seated."""

from __future__ import annotations

from typing import Generic, NamedTuple

from server.engine import PriorityClass
from server.kv.block_pool import IntegrityError
from server.scheduling.shares import ClassShares
from server.scheduling.tenants import RANK_STEP, ClassQueue, W


class Standing(NamedTuple):
    """Those of one class whose ranks are the same within a RANK_STEP."""

    level: int
    rank: float
    requests: int
    work: int
    """Tokens of all of them that the cache will probably not have."""


class WaitingRoom(Generic[W]):
    """Classes in the order that their shares give; within a class tenants by what they were served; within a tenant by key.

    push and pop O(log n), remove O(1) amortised, peek O(1) amortised, however many wait. Who comes back after a preemption brings its old
    key, and so its old place among its tenant's requests. Engine thread only.
    """

    __slots__ = ("_queues", "shares", "work_by_class")

    def __init__(self, shares: ClassShares, *, fair: bool = True, burst: float = 0.0) -> None:
        self.shares = shares
        self._queues: tuple[ClassQueue[W], ...] = tuple(ClassQueue(fair=fair, burst=burst) for _ in PriorityClass)
        self.work_by_class = [0] * len(PriorityClass)
        """Sum of the waiters' work, in tokens. Written here and nowhere else."""

    def __len__(self) -> int:
        interactive, standard, batch = self._queues
        return interactive.count + standard.count + batch.count

    @property
    def by_class(self) -> tuple[int, int, int]:
        interactive, standard, batch = self._queues
        return interactive.count, standard.count, batch.count

    @property
    def work(self) -> int:
        """Sum of all waiters' work, in tokens."""
        return sum(self.work_by_class)

    def push(self, waiter: W) -> None:
        level = int(waiter.key[0])
        self._queues[level].push(waiter)
        self.work_by_class[level] += waiter.waiting_work

    def peek(self, level: int | None = None) -> W | None:
        """Who is next, of all or of one class; None when nobody waits."""
        if level is not None:
            return self._queues[level].head()
        for each in self.shares.order:
            if self._queues[each].count:
                return self._queues[each].head()
        return None

    def pop(self, level: int | None = None) -> W:
        """Take who is next, of all or of one class. Raises IndexError when nobody waits."""
        if level is None:
            level = next((each for each in self.shares.order if self._queues[each].count), 0)
        waiter = self._queues[level].take()
        self.work_by_class[level] -= waiter.waiting_work
        return waiter

    def remove(self, waiter: W) -> None:
        """Take out a waiter from anywhere."""
        level = int(waiter.key[0])
        self._queues[level].remove(waiter)
        self.work_by_class[level] -= waiter.waiting_work

    def settle(self, waiter: W, tokens: float) -> None:
        """Whoever was taken out by pop is over and took so many weighted tokens, prompt and output."""
        self._queues[int(waiter.key[0])].settle(waiter, tokens)

    def standing(self, tenant: str) -> tuple[int, int]:
        """The tenant's waiting requests, of whatever class, and how many tenants wait in one at least, it included. Any thread."""
        own = [queue.waiting_of(tenant) for queue in self._queues]
        return sum(own), max(queue.tenants + (not mine) for queue, mine in zip(self._queues, own, strict=True))

    def standings(self) -> list[Standing]:
        """Who waits, in the order of class and rank: the classes above go before, whatever their ranks. O(n log n) in the ranks that
        differ. Any thread."""
        return [
            Standing(level, place * RANK_STEP, count, work)
            for level, queue in enumerate(self._queues)
            for place, (count, work) in queue.tallies()
        ]

    def check_integrity(self) -> None:
        """Counts and work equal what is in the queues. O(n)."""
        work = [queue.check_integrity(level) for level, queue in enumerate(self._queues)]
        if work != self.work_by_class:
            raise IntegrityError(f"waiting work by class is {work} tokens, counted {self.work_by_class}")
        for level, queue in enumerate(self._queues):
            queue.check_ranks(level)
