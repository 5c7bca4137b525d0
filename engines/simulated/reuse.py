"""The blocks of the simulated executor: counts and identities only, since its tokens come from histories.

A block is *private* to one sequence until it is full and published; then it is *cached* under its key, with the number of sequences
that hold it, and evicted in order of last use once nobody does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engines.contract import EngineError

BlockKey = tuple[int | None, int, int]
"""(salt, index of the block in its history, state after it)."""


Journal = Callable[[bool, BlockKey], object]
"""Told of each block that becomes reusable (True) or no longer is (False)."""


@dataclass(slots=True)
class Holding:
    """The blocks of one sequence."""

    private: int = 0
    shared: list[BlockKey] = field(default_factory=list)

    def __len__(self) -> int:
        return self.private + len(self.shared)


class ReusePool:
    """One thread at a time."""

    def __init__(self, block_count: int) -> None:
        self.block_count = block_count
        self.reused = 0
        self.missed = 0
        self.evicted = 0
        self.journal: Journal | None = None
        self._private = 0
        self._cached: OrderedDict[BlockKey, int] = OrderedDict()

    @property
    def used(self) -> int:
        """Blocks that some sequence holds."""
        return self._private + sum(1 for holders in self._cached.values() if holders)

    @property
    def cached(self) -> int:
        """Published blocks that nobody holds."""
        return sum(1 for holders in self._cached.values() if not holders)

    def open(self, keys: Sequence[BlockKey]) -> Holding:
        """Hold the longest cached beginning of ``keys``, the full blocks of a prompt that may be reused."""
        holding = Holding()
        for key in keys:
            if key not in self._cached:
                break
            self._hold(holding, key)
        self.reused += len(holding.shared)
        self.missed += len(keys) - len(holding.shared)
        return holding

    def grow(self, holding: Holding, blocks: int) -> None:
        """Have at least ``blocks`` in the holding, evicting what nobody holds."""
        more = max(0, blocks - len(holding))
        holding.private += more
        self._private += more
        self._evict()

    def publish(self, holding: Holding, keys: Sequence[BlockKey]) -> None:
        """The sequence's first ``len(keys)`` blocks are full: others may hold them. What is cached already stays double."""
        held = set(holding.shared)
        for key in keys:
            if key not in self._cached:
                holding.private -= 1
                self._private -= 1
                self._cached[key] = 0
                self._hold(holding, key)
                self._note(True, key)
            elif key not in held:
                self._cached.move_to_end(key)

    def close(self, holding: Holding) -> None:
        """Give all back. Published blocks stay cached, the last of a history first to go."""
        self._private -= holding.private
        for key in reversed(holding.shared):
            self._cached[key] -= 1
            self._cached.move_to_end(key)
        holding.private = 0
        holding.shared.clear()

    def check_integrity(self, holdings: Sequence[Holding]) -> None:
        """``holdings`` are all open ones. Raises EngineError."""
        private = sum(holding.private for holding in holdings)
        shared = sum(len(holding.shared) for holding in holdings)
        if private != self._private or shared != sum(self._cached.values()):
            raise EngineError(
                f"blocks: {self._private} private, {sum(self._cached.values())} holds; holders say {private}, {shared}"
            )
        if self._private + len(self._cached) > self.block_count:
            raise EngineError(f"blocks: {self._private} private + {len(self._cached)} cached of {self.block_count}")

    def _hold(self, holding: Holding, key: BlockKey) -> None:
        self._cached[key] += 1
        self._cached.move_to_end(key)
        holding.shared.append(key)

    def _evict(self) -> None:
        excess = self._private + len(self._cached) - self.block_count
        if excess <= 0:
            return
        idle = [key for key, holders in self._cached.items() if not holders][:excess]
        if len(idle) < excess:
            raise EngineError(f"blocks: {excess} too many in use of {self.block_count}; a reservation was not kept")
        self.evicted += len(idle)
        for key in idle:
            del self._cached[key]
            self._note(False, key)

    def _note(self, reusable: bool, key: BlockKey) -> None:
        if self.journal is not None:
            self.journal(reusable, key)
