"""Numbers for cache salts, for executors that take no bytes."""

from __future__ import annotations

from collections import OrderedDict


class SaltNumbers:
    """Two different salts never have the same number, whoever chose them: numbers are counted, not hashed.

    The salts least recently asked for are forgotten; one that comes back gets a new number, and with it an empty cache. Number 0 is
    never given. One thread.
    """

    __slots__ = ("_capacity", "_last", "_numbers")

    def __init__(self, capacity: int = 65_536) -> None:
        """Raises ValueError where ``capacity`` is below 1."""
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._capacity = capacity
        self._numbers: OrderedDict[bytes, int] = OrderedDict()
        self._last = 0

    def number(self, salt: bytes) -> int | None:
        """None for the empty salt, which is no salt."""
        if not salt:
            return None
        known = self._numbers.get(salt)
        if known is not None:
            self._numbers.move_to_end(salt)
            return known
        self._last += 1
        self._numbers[salt] = self._last
        if len(self._numbers) > self._capacity:
            self._numbers.popitem(last=False)
        return self._last
