"""A trace's prefixes against the prefix cache alone: one request after the other, each computed before the next comes.

The measure of an eviction policy: no scheduling, no time, only which blocks are still there. A block of the trace stands for one
block of the cache, whatever its number of tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from loadtest.traces import Trace
from server.kv.block_pool import BlockPool
from server.kv.eviction import EvictionPolicy
from server.kv.prefix_cache import PrefixCache
from server.kv.sequence_blocks import SequenceBlocks

_ROOT = b"replay"


def unique_blocks(trace: Trace) -> int:
    """How many different blocks the trace has: a cache of so many never evicts."""
    return len({block for row in trace.rows for block in row.blocks})


def hit_rate(trace: Trace, capacity: int, policy: Callable[[], EvictionPolicy]) -> float:
    """Share of all blocks asked for that a cache of ``capacity`` blocks had, from the beginning of each prompt on."""
    cache = PrefixCache(BlockPool(capacity), 1, policy())
    hits = asked = 0
    for row in trace.rows:
        sequence = SequenceBlocks(cache, _ROOT, array("i", row.blocks))
        found = sequence.match(len(row.blocks))
        hits += len(found)
        asked += len(row.blocks)
        sequence.adopt(found)
        sequence.grow(len(row.blocks))
        sequence.publish(len(sequence.table))
        sequence.release()
    return hits / asked if asked else 0.0
