"""Who waits, in the order in which they will be seated."""

from __future__ import annotations

from itertools import chain
from math import inf
from typing import Generic

from server.engine import PriorityClass
from server.scheduling.rank_sums import Around, total
from server.scheduling.shares import ClassShares
from server.scheduling.tenants import NEVER_LONG, ClassQueue, W


class WaitingRoom(Generic[W]):
    """Classes in the order that their shares give; within a class tenants by what they were served; within a tenant by key.

    push and pop O(log n), remove O(1) amortised, peek O(1) amortised, however many wait. Who comes back after a preemption brings its old
    key, and so its old place among its tenant's requests. Engine thread only.
    """

    __slots__ = ("_queues", "shares")

    def __init__(self, shares: ClassShares, *, fair: bool = True, burst: float = 0.0, long: int = NEVER_LONG) -> None:
        """``fair``, ``burst``, ``long``: see ClassQueue."""
        self.shares = shares
        self._queues: tuple[ClassQueue[W], ...] = tuple(
            ClassQueue(fair=fair, burst=burst, long=long) for _ in PriorityClass
        )

    def __len__(self) -> int:
        interactive, standard, batch = self._queues
        return interactive.count + standard.count + batch.count

    @property
    def by_class(self) -> tuple[int, int, int]:
        interactive, standard, batch = self._queues
        return interactive.count, standard.count, batch.count

    @property
    def work(self) -> int:
        """Tokens to compute of all who wait, what is cached of them included."""
        interactive, standard, batch = self._queues
        return interactive.ranks.all.known + standard.ranks.all.known + batch.ranks.all.known

    def push(self, waiter: W) -> None:
        self._queues[int(waiter.key[0])].push(waiter)

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
        return self._queues[level].take()

    def remove(self, waiter: W) -> None:
        """Take out a waiter from anywhere."""
        self._queues[int(waiter.key[0])].remove(waiter)

    def settle(self, waiter: W, tokens: float) -> None:
        """Whoever was taken out by pop is over and took so many weighted tokens, prompt and output."""
        self._queues[int(waiter.key[0])].settle(waiter, tokens)

    def standing(self, tenant: str) -> tuple[int, int]:
        """The tenant's waiting requests, of whatever class, and how many tenants wait in one at least, it included. Any thread."""
        own = [queue.waiting_of(tenant) for queue in self._queues]
        return sum(own), max(queue.tenants + (not mine) for queue, mine in zip(self._queues, own, strict=True))

    def around(self, level: int, rank: float, ahead: int, behind: int) -> Around:
        """Who waits before and after a newcomer of this class and rank, in the order of class and rank, at most so many one by one: the
        classes above go before it whatever their ranks, and so does whoever has its rank and came sooner. O(log n). Any thread: of each class
        it is one picture, of the classes one after the other."""
        key = (level, rank, inf)
        parts = [queue.ranks.around(key, ahead, behind) for queue in self._queues]
        nearest = list(chain.from_iterable(part.nearest for part in parts))
        following = list(chain.from_iterable(part.following for part in parts))
        return Around(
            total([part.ahead for part in parts]),
            nearest[max(0, len(nearest) - ahead) :],
            total([part.behind for part in parts]),
            following[:behind],
        )

    def check_integrity(self) -> None:
        """What each queue counts and sums up equals what is in it. O(n log n)."""
        for level, queue in enumerate(self._queues):
            queue.check_integrity(level)
