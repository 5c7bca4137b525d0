"""Wishes about retention: the lowest priority goes first, for as long as the wish lasts, and the tree's shape counts before any wish."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.contract import Retention
from server.kv.block_pool import BlockPool
from server.kv.eviction import EvictionPolicy, LeastRecentlyUsed, ReusedStayLonger
from server.kv.hashing import identity_digest
from server.kv.prefix_cache import PrefixCache
from server.kv.retention import wish_for
from server.kv.sequence_blocks import SequenceBlocks
from tests.kv.house import BLOCK

LONGEST = 100.0
WISHES = st.tuples(st.integers(0, 100), st.one_of(st.none(), st.floats(0.5, 200)))


def cache_of(blocks: int, policy: EvictionPolicy | None = None) -> PrefixCache:
    return PrefixCache(BlockPool(blocks), BLOCK, policy or LeastRecentlyUsed(), longest_retention=LONGEST)


def compute(cache: PrefixCache, tokens: list[int], *stretches: Retention) -> None:
    """A request that computes, or finds, these tokens, and ends."""
    blocks = SequenceBlocks(cache, identity_digest("test", BLOCK), array("i", tokens), stretches)
    blocks.adopt(blocks.match(len(tokens)))
    assert blocks.grow(len(tokens) // BLOCK)
    blocks.publish(len(tokens))
    blocks.release()
    cache.check_integrity()


def evicted(cache: PrefixCache, count: int) -> list[int]:
    """The first tokens of the blocks that go next, in order; they are not given back."""
    while cache.pool.free:
        cache.allocate()
    order = []
    for _ in range(count):
        names = {node.block: node.tokens[0] for node in cache.nodes()}
        order.append(names[cache.allocate()])
        cache.check_integrity()
    return order


@pytest.mark.parametrize("policy", [LeastRecentlyUsed, ReusedStayLonger])
@given(wishes=st.lists(st.one_of(st.none(), WISHES), min_size=1, max_size=12), now=st.floats(0, 150))
def test_the_lowest_priority_in_force_goes_first_then_the_oldest(
    policy: type[EvictionPolicy], wishes: list[tuple[int, float | None] | None], now: float
) -> None:
    cache = cache_of(12, policy())
    for number, wish in enumerate(wishes):
        compute(cache, [number] * BLOCK, *([Retention(0, None, *wish)] if wish else []))
    cache.now = now
    in_force = [
        wish[0] if wish and now < min(LONGEST, LONGEST if wish[1] is None else wish[1]) else 35 for wish in wishes
    ]
    expected = sorted(range(len(wishes)), key=lambda number: (in_force[number], number))
    assert evicted(cache, len(wishes)) == expected


def test_a_block_goes_by_the_stretch_that_holds_its_first_token() -> None:
    stretches = (Retention(0, 5, 90), Retention(6, 9, 10), Retention(9, None, 50))
    assert [wish_for(stretches, token) for token in (0, 4, 5, 8, 9, 400)] == [
        stretches[0],
        stretches[0],
        None,
        stretches[1],
        stretches[2],
        stretches[2],
    ]


def test_an_end_that_is_worth_more_keeps_its_beginning_too() -> None:
    """Only leaves can go, whatever their beginnings are worth."""
    cache = cache_of(4)
    compute(cache, [1] * BLOCK + [2] * BLOCK, Retention(0, BLOCK, 0), Retention(BLOCK, None, 80))
    compute(cache, [3] * BLOCK)
    compute(cache, [4] * BLOCK)
    assert evicted(cache, 4) == [3, 4, 2, 1]


def test_who_finds_a_block_can_wish_anew_and_the_latest_wish_counts() -> None:
    cache = cache_of(3)
    compute(cache, [1] * BLOCK, Retention(0, None, 90))
    compute(cache, [2] * BLOCK, Retention(0, None, 60))
    compute(cache, [3] * BLOCK)
    compute(cache, [1] * BLOCK, Retention(0, None, 5))
    compute(cache, [2] * BLOCK)
    assert evicted(cache, 3) == [1, 3, 2], "who wishes nothing changes nothing"


def test_a_wish_that_was_renewed_does_not_end_at_its_first_time() -> None:
    cache = cache_of(2)
    compute(cache, [1] * BLOCK, Retention(0, None, 90, 10.0))
    cache.now = 8.0
    compute(cache, [1] * BLOCK, Retention(0, None, 90, 10.0))
    compute(cache, [2] * BLOCK)
    cache.now = 12.0
    assert evicted(cache, 1) == [2]


def test_wishes_without_end_take_no_memory_without_end() -> None:
    cache = cache_of(2)
    for _ in range(5000):
        compute(cache, [1] * BLOCK, Retention(0, None, 90))
    compute(cache, [2] * BLOCK)
    compute(cache, [3] * BLOCK)
    assert len(cache._retained._ends) < 200


def test_a_prefix_tree_with_wishes_is_wholly_evictable() -> None:
    cache = cache_of(6)
    for tail in (2, 3, 4):
        compute(cache, [1] * BLOCK + [tail] * BLOCK, Retention(0, BLOCK, 100), Retention(BLOCK, None, tail * 20))
    cache.now = 50.0
    assert evicted(cache, 4) == [2, 3, 4, 1]
    assert cache.cached == 0
