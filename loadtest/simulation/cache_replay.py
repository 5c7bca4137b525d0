"""A trace's prefixes against the prefix cache alone: one request after the other, each computed before the next comes.

The measure of an eviction policy: no scheduling, no time, only which blocks are still there. A block of the trace stands for one
block of the cache, whatever its number of tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec

from loadtest.traces import Trace
from server.kv.block_pool import BlockPool
from server.kv.eviction import EvictionPolicy
from server.kv.prefix_cache import PrefixCache
from server.kv.sequence_blocks import SequenceBlocks

_ROOT = b"replay"
ATTENTION = 1 / 62
"""What attention to one earlier block of 512 tokens costs, in linear layers of a block: an 8B model's attention costs as much as its
linear layers at about 32,000 tokens (2 * 8e9 operations a token, against 4 * 32 layers * 4096 for each token before it)."""


def unique_blocks(trace: Trace) -> int:
    """How many different blocks the trace has: a cache of so many never evicts."""
    return len({block for row in trace.rows for block in row.blocks})


class Saved(msgspec.Struct, frozen=True):
    """Shares of what was asked for that a cache had, from the beginning of each prompt on."""

    blocks: float
    """The hit rate."""
    work: float
    """Of the computation: a block costs its linear layers and its attention to all before it."""


def hit_rate(trace: Trace, capacity: int, policy: Callable[[], EvictionPolicy]) -> float:
    """Share of all blocks asked for that a cache of ``capacity`` blocks had, from the beginning of each prompt on."""
    return saved(trace, capacity, policy).blocks


def saved(trace: Trace, capacity: int, policy: Callable[[], EvictionPolicy]) -> Saved:
    """What a cache of ``capacity`` blocks saves of the trace."""
    cache = PrefixCache(BlockPool(capacity), 1, policy())
    hits = asked = 0
    worked = 0.0
    work = 0.0
    for row in trace.rows:
        sequence = SequenceBlocks(cache, _ROOT, array("i", row.blocks))
        found = sequence.match(len(row.blocks))
        hits += len(found)
        asked += len(row.blocks)
        worked += _work(len(found))
        work += _work(len(row.blocks))
        sequence.adopt(found)
        sequence.grow(len(row.blocks))
        sequence.publish(len(sequence.table))
        sequence.release()
    return Saved(hits / asked, worked / work) if asked else Saved(0.0, 0.0)


def _work(blocks: int) -> float:
    """Of computing the first ``blocks`` blocks of a prompt, in linear layers of one block."""
    return blocks + ATTENTION * blocks * (blocks + 1) / 2
