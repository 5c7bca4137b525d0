"""Pinned prefixes: a pin holds the blocks of a prefix as a sequence would, so that nothing evicts them, until its time is over.

Because a pin is a holder like any other, its blocks count as in use, and whoever counts on free or cached blocks counts without them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from server.kv.block_pool import IntegrityError
from server.kv.node import Node
from server.kv.prefix_cache import PrefixCache


class _Pin:
    __slots__ = ("blocks", "until")

    def __init__(self, blocks: list[int], until: float) -> None:
        self.blocks = blocks
        self.until = until


class Pins:
    """At most one pin a prefix, under the name of the prefix's last block. Engine thread only."""

    __slots__ = ("_cache", "_holders", "_pins", "_times")

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._pins: dict[bytes, _Pin] = {}
        self._holders: dict[int, int] = {}
        """Block to the number of pins that hold it."""
        self._times: list[tuple[float, bytes]] = []
        """A heap of when pins end; an entry is stale once its pin is gone or ends at another time."""

    @property
    def blocks(self) -> int:
        """Different blocks that are pinned."""
        return len(self._holders)

    def until(self, name: bytes) -> float | None:
        """When the pin of this name ends; None where there is none."""
        pin = self._pins.get(name)
        return None if pin is None else pin.until

    def added(self, node: Node) -> tuple[int, int]:
        """What pinning ``node`` would add: blocks pinned, and of these, blocks that nobody holds now. Changes nothing."""
        new = [each for each in _chain(node) if each.block not in self._holders]
        return len(new), sum(not self._cache.is_held(each) for each in new)

    def pin(self, node: Node, until: float) -> None:
        """Hold a published block and all before it until then. A pin of this name that is there already gets the new end."""
        pin = self._pins.get(node.digest)
        if pin is None:
            chain = _chain(node)
            pin = self._pins[node.digest] = _Pin([self._cache.hold(each) for each in chain], until)
            for each in chain:
                self._holders[each.block] = self._holders.get(each.block, 0) + 1
        pin.until = until
        heapq.heappush(self._times, (until, node.digest))

    def unpin(self, name: bytes) -> bool:
        """False where nothing of this name is pinned."""
        pin = self._pins.pop(name, None)
        if pin is None:
            return False
        for block in pin.blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
        self._cache.release(pin.blocks)
        return True

    def expire(self, now: float) -> None:
        """Let go what has been pinned for long enough."""
        while self._times and self._times[0][0] <= now:
            until, name = heapq.heappop(self._times)
            if self.until(name) == until:
                self.unpin(name)

    def clear(self) -> None:
        for name in list(self._pins):
            self.unpin(name)

    def all(self) -> list[tuple[bytes, float]]:
        """Names, and when each ends."""
        return sorted((name, pin.until) for name, pin in self._pins.items())

    def holds(self) -> Iterator[int]:
        """Each block as often as pins hold it."""
        for pin in self._pins.values():
            yield from pin.blocks

    def check_integrity(self) -> None:
        counted: dict[int, int] = {}
        for block in self.holds():
            counted[block] = counted.get(block, 0) + 1
        if counted != self._holders:
            raise IntegrityError(f"pins hold {counted}, kept {self._holders}")
        timed = set(self._times)
        for name, pin in self._pins.items():
            node = self._cache.find(name)
            if node is None or [each.block for each in _chain(node)] != pin.blocks:
                raise IntegrityError(f"the pin of {name.hex()} does not hold what is published under this name")
            if (pin.until, name) not in timed:
                raise IntegrityError(f"the pin of {name.hex()} would never end")


def _chain(node: Node) -> list[Node]:
    """A published block and all before it, first to last."""
    chain = []
    while node.parent is not None:
        chain.append(node)
        node = node.parent
    return chain[::-1]
