"""What the executor's iterations say about themselves, as the contract's statistics."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class IterationFigures:
    """The last iteration's picture. Counters are the library's own and only grow."""

    queued: int = 0
    used_blocks: int = 0
    max_blocks: int = 0
    block_size: int = 0
    reused_blocks: int = 0
    missed_blocks: int = 0
    iterations: int = 0

    def take(self, iterations: Sequence[Any]) -> None:
        """``iterations``: what get_latest_iteration_stats() gave, oldest first; empty where nothing ran since."""
        if not iterations:
            return
        last = iterations[-1]
        self.iterations = int(last.iter)
        self.queued = int(last.num_queued_requests)
        blocks = last.kv_cache_stats
        if blocks is not None:
            self.used_blocks = int(blocks.used_num_blocks)
            self.max_blocks = int(blocks.max_num_blocks)
            self.block_size = int(blocks.tokens_per_block)
            self.reused_blocks = int(blocks.reused_blocks)
            self.missed_blocks = int(blocks.missed_blocks)


@dataclass(slots=True)
class HeldCalls:
    """Time in calls that hold the interpreter's lock: while one runs, no other Python thread does. The caller's lock guards it."""

    count: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    clock: Callable[[], float] = time.perf_counter

    def run(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the library returns
        began = self.clock()
        try:
            return call()
        finally:
            taken = self.clock() - began
            self.count += 1
            self.seconds += taken
            self.longest = max(self.longest, taken)
