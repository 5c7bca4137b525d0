"""A few seats that a tenant who holds most of them leaves to others, so that they need not wait for one."""

from __future__ import annotations

from collections import Counter, deque

_REMEMBERED = 512
"""Seated requests by which it is judged whether there are others at all."""
_KEPT = 16
"""One seat in so many."""


class SeatReserve:
    """Counts seats by tenant. While a tenant holds more than half of the seats and others have been seated lately, it does not get the last
    sixteenth. Alone it gets all. Engine thread only."""

    __slots__ = ("_held", "_lately", "_order", "_seats")

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._held: Counter[str] = Counter()
        self._lately: Counter[str] = Counter()
        self._order: deque[str] = deque()

    def take(self, tenant: str) -> None:
        """It got a seat."""
        self._held[tenant] += 1
        self._lately[tenant] += 1
        self._order.append(tenant)
        if len(self._order) > _REMEMBERED:
            _less(self._lately, self._order.popleft())

    def leave(self, tenant: str) -> None:
        """It gave one back."""
        _less(self._held, tenant)

    def kept_from(self, tenant: str) -> int:
        """Free seats that are not for this tenant."""
        if 2 * self._held[tenant] <= self._seats or self._lately[tenant] == len(self._order):
            return 0
        return self._seats // _KEPT


def _less(counts: Counter[str], tenant: str) -> None:
    counts[tenant] -= 1
    if not counts[tenant]:
        del counts[tenant]
