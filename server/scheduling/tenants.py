"""One class of the waiting room: tenants by what they were served, and within each tenant requests by key.

The virtual token counter of Sheng et al., Fairness in Serving Large Language Models, 2024: the backlogged tenant that was served least goes
next; who comes back after a pause starts from where the others are, so that idling saves nothing up. A request is charged its expected
tokens when it leaves the room, and what it really took when it is over.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

from server.kv.block_pool import IntegrityError
from server.scheduling.rank_sums import RankSums, Sums, of_one

_COMPACT_ABOVE = 64
_MAX_IDLE = 4096
"""Tenants without a request whose counters are kept; beyond that those served least are forgotten."""

NEVER_LONG = 1 << 30
"""Tokens that no prompt has."""

Key = tuple[float, ...]
"""(class, rank within class and tenant, ...)."""


class Waiter(Protocol):
    """What the room needs of whoever waits in it. ``queued`` and ``charged`` are written by the room alone."""

    queued: bool
    charged: float | None
    """Tokens that its tenant's counter was charged; None = not yet, or settled."""

    @property
    def key(self) -> Key:
        """Unique and never changing; its first element is the class."""
        ...

    @property
    def tenant(self) -> str: ...

    @property
    def waiting_work(self) -> int:
        """Tokens to compute before its next token. Must not change while it waits."""
        ...

    @property
    def expected_work(self) -> int:
        """Of that, what the cache will probably not have. Must not change while it waits."""
        ...

    @property
    def seat_tokens(self) -> int:
        """Tokens that KV blocks are set aside for when it is seated. Must not change while it waits."""
        ...

    @property
    def expected_output(self) -> int:
        """Tokens that it will probably draw. Must not change."""
        ...

    @property
    def expected_charge(self) -> float:
        """Weighted tokens that it will probably take, prompt and output."""
        ...


W = TypeVar("W", bound=Waiter)


class _Tenant(Generic[W]):
    __slots__ = ("count", "counter", "entry", "heap", "name", "unsettled")

    def __init__(self, name: str) -> None:
        self.name = name
        self.counter = 0.0
        self.heap: list[tuple[Key, W]] = []
        self.count = 0
        """Waiting; the heap may hold dead entries too."""
        self.unsettled = 0
        """Requests that left the room and are not over."""
        self.entry: tuple[float, Key] | None = None
        """Its valid entry among the backlogged; None = nobody waits."""

    def head(self) -> W:
        while not self.heap[0][1].queued:
            heapq.heappop(self.heap)
        return self.heap[0][1]


class ClassQueue(Generic[W]):
    """push, take and remove O(log n), head O(1), all amortised. Engine thread only, but for ``ranks``."""

    __slots__ = ("_backlogged", "_burst", "_fair", "_long", "_served", "_tenants", "count", "ranks", "tenants")

    def __init__(self, *, fair: bool, burst: float = 0.0, long: int = NEVER_LONG) -> None:
        """``fair`` False: all tenants count as one, keys alone decide. ``burst``: weighted tokens by which who comes back after a pause
        may start before the others, out of what it left unused. ``long``: tokens to compute beyond which a prompt counts as long."""
        self._burst = burst
        self._fair = fair
        self._long = long
        self._tenants: dict[str, _Tenant[W]] = {}
        self._backlogged: list[tuple[float, Key, _Tenant[W]]] = []
        self._served = 0.0
        """Counter of whom the room served last: where a tenant starts that comes into an empty room."""
        self.ranks = RankSums()
        """Who waits in the order of the keys, whatever its tenant. Of who waits for another tenant, rank tells little."""
        self.count = 0
        self.tenants = 0
        """How many tenants wait."""

    def push(self, waiter: W) -> None:
        tenant = self._tenant(waiter)
        if not tenant.count:
            tenant.counter = max(tenant.counter, self._floor() - self._burst)
            self.tenants += 1
        heapq.heappush(tenant.heap, (waiter.key, waiter))
        waiter.queued = True
        tenant.count += 1
        self.count += 1
        self.ranks.add(waiter.key, self._sums(waiter))
        self._enter(tenant)

    def head(self) -> W | None:
        """Who is next."""
        tenant = self._next_tenant()
        return None if tenant is None else tenant.head()

    def take(self) -> W:
        """Take out who is next, and charge its tenant. Raises IndexError where nobody waits."""
        tenant = self._next_tenant()
        if tenant is None:
            raise IndexError("nobody waits")
        waiter = tenant.head()
        heapq.heappop(tenant.heap)
        self._served = tenant.counter
        if waiter.charged is None:
            waiter.charged = waiter.expected_charge
            tenant.counter += waiter.charged
            tenant.unsettled += 1
        self._leave(tenant, waiter)
        return waiter

    def remove(self, waiter: W) -> None:
        """Take out a waiter from anywhere, uncharged."""
        tenant = self._tenants[self._name(waiter)]
        self._leave(tenant, waiter)
        if len(tenant.heap) > 2 * tenant.count + _COMPACT_ABOVE:
            tenant.heap = [entry for entry in tenant.heap if entry[1].queued]
            heapq.heapify(tenant.heap)

    def waiting_of(self, name: str) -> int:
        """Of a tenant. Any thread."""
        tenant = self._tenants.get(name if self._fair else "")
        return 0 if tenant is None else tenant.count

    def settle(self, waiter: W, tokens: float) -> None:
        """It is over and took so many weighted tokens. Nothing to do for whoever never left the room."""
        if waiter.charged is None:
            return
        tenant = self._tenants[self._name(waiter)]
        tenant.counter += tokens - waiter.charged
        tenant.unsettled -= 1
        waiter.charged = None
        if tenant.count:
            self._enter(tenant)
        else:
            self._forget_if_idle(tenant)

    # ------------------------------------------------------------------ tenants

    def _name(self, waiter: W) -> str:
        return waiter.tenant if self._fair else ""

    def _tenant(self, waiter: W) -> _Tenant[W]:
        name = self._name(waiter)
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= _MAX_IDLE:
                self._forget_idle()
            tenant = self._tenants[name] = _Tenant(name)
        return tenant

    def _floor(self) -> float:
        """Counter below which nobody starts."""
        tenant = self._next_tenant()
        return self._served if tenant is None else tenant.counter

    def _next_tenant(self) -> _Tenant[W] | None:
        heap = self._backlogged
        while heap:
            counter, key, tenant = heap[0]
            if tenant.entry == (counter, key):
                return tenant
            heapq.heappop(heap)
        return None

    def _enter(self, tenant: _Tenant[W]) -> None:
        """Among the backlogged under its counter and its head's key, if it is not there so already."""
        entry = (tenant.counter, tenant.head().key)
        if tenant.entry == entry:
            return
        tenant.entry = entry
        heapq.heappush(self._backlogged, (*entry, tenant))
        if len(self._backlogged) > 4 * len(self._tenants) + _COMPACT_ABOVE:
            self._backlogged = [each for each in self._backlogged if each[2].entry == each[:2]]
            heapq.heapify(self._backlogged)

    def _leave(self, tenant: _Tenant[W], waiter: W) -> None:
        waiter.queued = False
        tenant.count -= 1
        self.count -= 1
        self.ranks.remove(waiter.key, self._sums(waiter))
        if tenant.count:
            self._enter(tenant)
        else:
            self.tenants -= 1
            tenant.heap.clear()
            tenant.entry = None
            self._forget_if_idle(tenant)

    def _sums(self, waiter: W) -> Sums:
        work, known = waiter.expected_work, waiter.waiting_work
        return of_one(work, known, self._long, room=waiter.seat_tokens, output=waiter.expected_output)

    def _forget_if_idle(self, tenant: _Tenant[W]) -> None:
        """Its counter says nothing that the floor would not say."""
        if not tenant.count and not tenant.unsettled and tenant.counter <= self._floor() - self._burst:
            del self._tenants[tenant.name]

    def _forget_idle(self) -> None:
        idle = [tenant for tenant in self._tenants.values() if not tenant.count and not tenant.unsettled]
        for tenant in heapq.nsmallest(len(idle) // 2, idle, key=lambda each: each.counter):
            del self._tenants[tenant.name]

    def check_integrity(self, level: int) -> None:
        """Raises IntegrityError where the books contradict each other. O(n log n)."""
        waiting, backlogged = list[W](), 0
        for tenant in self._tenants.values():
            if tenant.heap or tenant.count or tenant.entry:
                waiting += self._check_tenant(tenant, level)
                backlogged += tenant.count > 0
        if self.tenants != backlogged:
            raise IntegrityError(f"class {level}: {self.tenants} tenants counted as waiting, and others wait")
        if len(waiting) != self.count:
            raise IntegrityError(f"class {level}: {len(waiting)} wait, counted {self.count}")
        self.ranks.check_integrity((waiter.key, self._sums(waiter)) for waiter in waiting)

    def _check_tenant(self, tenant: _Tenant[W], level: int) -> list[W]:
        """Its waiters, which are as many as it counts."""
        living = list({id(waiter): waiter for _, waiter in tenant.heap if waiter.queued}.values())
        if len(living) != tenant.count or (tenant.entry is None) != (not living):
            raise IntegrityError(f"class {level}, tenant {tenant.name!r}: {len(living)} wait, counted {tenant.count}")
        if any(waiter.key[0] != level for waiter in living):
            raise IntegrityError(f"class {level}: a waiter of another class")
        return living
