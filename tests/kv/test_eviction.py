"""Which block goes first: the exact order, under both policies."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from loadtest.simulation.cache_replay import ATTENTION, hit_rate, saved, unique_blocks
from loadtest.traces import Trace, TraceRow
from server.kv.block_pool import BlockPool
from server.kv.eviction import CostlyStayLonger, EvictionPolicy, LeastRecentlyUsed, ReusedStayLonger
from server.kv.prefix_cache import PrefixCache
from server.kv.sequence_blocks import SequenceBlocks

POLICIES: list[Callable[[], EvictionPolicy]] = [LeastRecentlyUsed, ReusedStayLonger, lambda: CostlyStayLonger(1.0)]


class OneTokenBlocks:
    """A cache whose blocks are one token each, so that a prompt is the list of its blocks."""

    def __init__(self, capacity: int, policy: EvictionPolicy) -> None:
        self.cache = PrefixCache(BlockPool(capacity), 1, policy)

    def ask(self, *blocks: int) -> int:
        """One request from its coming to its end; how many of its blocks were there."""
        sequence = SequenceBlocks(self.cache, b"root", array("i", blocks))
        found = sequence.match(len(blocks))
        sequence.adopt(found)
        assert sequence.grow(len(blocks))
        sequence.publish(len(blocks))
        sequence.release()
        self.cache.check_integrity()
        return len(found)

    def has(self, *blocks: int) -> bool:
        return len(SequenceBlocks(self.cache, b"root", array("i", blocks)).match(len(blocks))) == len(blocks)


@pytest.mark.parametrize("policy", POLICIES)
def test_oldest_first_and_of_one_sequence_the_last_block_first(policy: Callable[[], EvictionPolicy]) -> None:
    house = OneTokenBlocks(6, policy())
    house.ask(1, 2, 3)
    house.ask(4, 5, 6)
    house.ask(7)
    assert house.has(1, 2)
    assert not house.has(1, 2, 3)
    house.ask(8, 9)
    assert not house.has(1)
    assert house.has(4, 5, 6)


def prove(house: OneTokenBlocks) -> None:
    """[1] is reused often, and then the cache lives through some evictions, which teach how long a block stays."""
    for _ in range(4):
        house.ask(1)
    for block in range(100, 400):
        house.ask(1)
        house.ask(block)


@pytest.mark.parametrize(("policy", "stays"), [(LeastRecentlyUsed, False), (ReusedStayLonger, True)])
def test_what_was_reused_often_outlives_what_came_after_it(policy: Callable[[], EvictionPolicy], stays: bool) -> None:
    house = OneTokenBlocks(8, policy())
    prove(house)
    for block in range(500, 500 + 8):
        house.ask(block)
    assert house.has(1) is stays


def test_a_head_start_is_no_tenure() -> None:
    house = OneTokenBlocks(8, ReusedStayLonger())
    prove(house)
    for block in range(500, 500 + 16):
        house.ask(block)
    assert not house.has(1)


def test_two_reuses_prove_nothing() -> None:
    house = OneTokenBlocks(8, ReusedStayLonger())
    for block in range(100, 400):
        house.ask(block)
    for _ in range(3):
        house.ask(1)
    for block in range(500, 500 + 8):
        house.ask(block)
    assert not house.has(1)


@pytest.mark.parametrize(("attention", "stays"), [(0.0, False), (1.0, True)])
def test_what_costs_more_to_compute_again_outlives_what_came_a_little_later(attention: float, stays: bool) -> None:
    """A prompt of six blocks, then single ones, in a pool of ten: the last block's attention looks at five others."""
    house = OneTokenBlocks(10, CostlyStayLonger(attention))
    for block in range(100, 600):  # teaches how long a block stays, and what victims usually cost
        house.ask(block)
    house.ask(1, 2, 3, 4, 5, 6)
    for block in range(600, 605):
        house.ask(block)
    assert house.has(1, 2, 3, 4, 5, 6) is stays


def test_the_replay_counts_hits_from_the_beginning_of_each_prompt_on() -> None:
    rows = [(1, 2, 3), (1, 2, 4), (9, 2, 3), (1, 2, 3)]
    trace = Trace("t", tuple(TraceRow(float(n), 3, 1, row) for n, row in enumerate(rows)), 512)
    assert unique_blocks(trace) == 5
    # 2 and 3 after 9 are other prefixes: nothing of the third row is there.
    assert hit_rate(trace, 100, LeastRecentlyUsed) == (0 + 2 + 0 + 3) / 12


def test_the_replay_weighs_a_deep_block_with_its_attention() -> None:
    trace = Trace("t", (TraceRow(0.0, 2, 1, (1, 2)), TraceRow(1.0, 2, 1, (1, 3))), 512)
    found = saved(trace, 100, LeastRecentlyUsed)
    assert found.blocks == 1 / 4
    assert found.work == (1 + ATTENTION) / (4 + 6 * ATTENTION)
