"""The ledger of KV blocks: who holds how many references, what is free, what rests until a step has completed.

Ids only; the runner owns the memory. Every block is in exactly one of four states, and the four counts always sum to the total:

    free         nobody holds it, its contents mean nothing, the next ``take`` may hand it out
    in use       one or more references
    cached       no reference, but the prefix cache still knows its contents (the cache keeps these; see prefix_cache.py)
    quarantined  no reference, contents worthless, but a step that names it has not completed yet

One thread, the engine's.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable


class IntegrityError(Exception):
    """A store contradicts itself. Always a fault of ours; the message says which law broke and the two values."""


class BlockPool:
    """Reference counts and the free stack. All storage is allocated at construction; every operation is O(1) a block."""

    __slots__ = ("_completed", "_free", "_in_use", "_opened", "_resting", "_resting_count", "count", "refs")

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"block count must be at least 1, not {count}")
        self.count = count
        self.refs = array("i", bytes(4 * count))
        """References by block id. Read by others; written here and nowhere else."""
        self._free = list(range(count - 1, -1, -1))
        self._resting: deque[tuple[int, list[int]]] = deque()
        self._resting_count = 0
        self._in_use = 0
        self._opened = 0
        self._completed = 0

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def in_use(self) -> int:
        return self._in_use

    @property
    def quarantined(self) -> int:
        return self._resting_count

    def take(self) -> int:
        """Hand out a free block with one reference: the one freed last, so that warm memory is used again.

        Raises IntegrityError when none is free: ask ``free`` first.
        """
        if not self._free:
            raise IntegrityError("a block was taken from a pool that has none free")
        block = self._free.pop()
        self.refs[block] = 1
        self._in_use += 1
        return block

    def retain(self, block: int) -> bool:
        """Add a reference. True when it is the first, so that a cached block came back into use."""
        refs = self.refs[block] + 1
        self.refs[block] = refs
        if refs == 1:
            self._in_use += 1
            return True
        return False

    def drop(self, block: int) -> bool:
        """Take a reference away. True when it was the last: the caller now keeps the block as cached, or calls :meth:`rest`."""
        refs = self.refs[block] - 1
        if refs < 0:
            raise IntegrityError(f"block {block} was released more often than it was held")
        self.refs[block] = refs
        if refs == 0:
            self._in_use -= 1
            return True
        return False

    def rest(self, blocks: list[int]) -> None:
        """Free unreferenced blocks; they rest until every step opened so far has completed."""
        if not blocks:
            return
        if self._opened == self._completed:
            self._free.extend(blocks)
        else:
            self._resting.append((self._opened, blocks))
            self._resting_count += len(blocks)

    def reclaim(self, block: int) -> None:
        """Free a block that the cache gave up.

        Needs no rest: a cached block has had no holder since before the last step was planned, so no open step names it.
        """
        self._free.append(block)

    def open_step(self, step: int) -> None:
        """From now on a freed block may still be named by this step."""
        if step <= self._opened:
            raise IntegrityError(f"step {step} was opened after step {self._opened}")
        self._opened = step

    def complete_step(self, step: int) -> None:
        """The step has completed, or failed: nothing reads or writes its blocks any more. Steps complete in order."""
        if not self._completed < step <= self._opened:
            raise IntegrityError(f"step {step} completed; opened {self._opened}, completed before {self._completed}")
        self._completed = step
        while self._resting and self._resting[0][0] <= step:
            blocks = self._resting.popleft()[1]
            self._free.extend(blocks)
            self._resting_count -= len(blocks)

    def check_integrity(self, cached: Iterable[int]) -> None:
        """Law 1: free + cached + in use + quarantined = total, each block in exactly one state. O(blocks)."""
        resting = [block for _, blocks in self._resting for block in blocks]
        in_use = [block for block, refs in enumerate(self.refs) if refs > 0]
        if len(in_use) != self._in_use or len(resting) != self._resting_count:
            raise IntegrityError(
                f"counted {len(in_use)} blocks in use and {len(resting)} quarantined, "
                f"kept {self._in_use} and {self._resting_count}"
            )
        kept = list(cached)
        if sorted(self._free + kept + in_use + resting) != list(range(self.count)):
            states = {"free": self._free, "cached": kept, "in use": in_use, "quarantined": resting}
            raise IntegrityError(self._contradiction(states))

    def _contradiction(self, states: dict[str, list[int]]) -> str:
        state: dict[int, str] = {}
        for name, blocks in states.items():
            for block in blocks:
                if block in state:
                    return f"block {block} is {state[block]} and {name}"
                state[block] = name
        everything = set(range(self.count))
        lost, strange = sorted(everything - state.keys()), sorted(state.keys() - everything)
        return f"{len(state)} blocks accounted for of {self.count}; lost {lost[:8]}, unknown {strange[:8]}"
