"""The prefix cache: exact ids, exact eviction order, what is shared, copied from and never shared."""

from __future__ import annotations

import pytest

from server.kv.block_pool import IntegrityError
from server.kv.node import NO_BLOCK
from server.kv.prefix_cache import PrefixCache
from tests.kv.house import BLOCK, filled, make_blocks, make_cache, matched

A, B, C = [10, 11, 12, 13], [20, 21, 22, 23], [30, 31, 32, 33]
X, Y, Z = [40, 41, 42, 43], [50, 51, 52, 53], [60, 61, 62, 63]


def evicted_order(cache: PrefixCache, known: dict[int, str]) -> list[str]:
    """Take every available block, one by one, and tell which cached ones went, in order."""
    order = []
    while (block := cache.allocate()) != NO_BLOCK:
        order.append(known.pop(block, "free"))
        cache.check_integrity()
    return order


def test_full_blocks_stay_behind_and_are_found_by_their_tokens_case_D7() -> None:
    cache = make_cache(8)
    filled(cache, [*A, *B, 1, 2]).release()
    assert (cache.cached, cache.pool.free) == (2, 6)
    assert matched(cache, [*A, *B, 9]) == [0, 1]
    assert matched(cache, [*A, *C, 9]) == [0]
    assert matched(cache, [*B, *A, 9]) == [], "the same tokens after another beginning are another block"
    cache.check_integrity()


def test_the_last_token_is_never_found() -> None:
    cache = make_cache(8)
    filled(cache, [*A, *B]).release()
    assert matched(cache, [*A, *B]) == [0], "its last block holds the last token, which must be computed"
    assert matched(cache, [*A, *B, 9]) == [0, 1]


def test_case_F8_a_prompt_shorter_than_a_block_finds_no_full_block() -> None:
    cache = make_cache(8)
    filled(cache, A).release()
    assert matched(cache, A[:3]) == []


def test_case_F7_another_salt_sees_nothing() -> None:
    cache = make_cache(8)
    filled(cache, [*A, *B], salt=b"one").release()
    assert matched(cache, [*A, *B, 9], salt=b"two") == []
    assert make_blocks(cache, [*A, 9], salt=b"two").match_partly(4) == (None, 0)
    assert matched(cache, [*A, *B, 9], salt=b"one") == [0, 1]


def test_shared_blocks_are_held_by_each_and_survive_the_first_release() -> None:
    cache = make_cache(4)
    first = filled(cache, [*A, *B])
    second = filled(cache, [*A, *B, 9])
    assert second.table.tolist() == [0, 1, 2]
    assert list(cache.pool.refs) == [2, 2, 1, 0]
    first.release()
    assert list(cache.pool.refs) == [1, 1, 1, 0]
    assert cache.cached == 0
    second.release()
    assert (cache.cached, cache.pool.free) == (2, 2)
    cache.check_integrity()


def test_eviction_takes_the_least_recently_used_sequence_tails_first() -> None:
    cache = make_cache(7)
    known = {0: "A", 1: "AB", 2: "ABC", 3: "X", 4: "XY"}
    filled(cache, [*A, *B, *C]).release()
    filled(cache, [*X, *Y]).release()
    # Whoever comes last uses A again; AB and ABC stay as old as they were.
    filled(cache, [*A, *Z]).release()
    known[5] = "AZ"
    assert evicted_order(cache, known) == ["free", "ABC", "AB", "XY", "X", "AZ", "A"]
    assert cache.evictions == 6


def test_a_parent_is_evicted_only_after_its_last_child_however_old_it_is() -> None:
    cache = make_cache(4)
    first = filled(cache, [*A, *B])
    second = filled(cache, [*A, *C])
    first.release()
    assert cache.allocate() == 3
    assert cache.allocate() == 1, "AB, the only unreferenced leaf; A is held"
    assert cache.allocate() == NO_BLOCK
    second.release()
    assert cache.allocate() == 2
    assert cache.allocate() == 0
    cache.check_integrity()


def test_held_blocks_are_never_evicted() -> None:
    cache = make_cache(2)
    filled(cache, [*A, *B])
    assert cache.available == 0
    assert cache.allocate() == NO_BLOCK


def test_a_hit_protects_from_eviction_until_it_is_released() -> None:
    cache = make_cache(2)
    filled(cache, [*A, *B]).release()
    reader = make_blocks(cache, [*A, 9])
    reader.adopt(reader.match(4))
    assert (cache.cached, cache.available) == (1, 1)
    assert cache.allocate() == 1
    assert cache.allocate() == NO_BLOCK
    reader.release()
    assert cache.allocate() == 0


def test_an_equal_block_published_meanwhile_is_shared_and_ours_is_given_back() -> None:
    cache = make_cache(8)
    first, second = make_blocks(cache, [*A, *B]), make_blocks(cache, [*A, *C])
    assert first.grow(2)
    assert second.grow(2)
    assert second.table.tolist() == [2, 3]
    first.publish(8)
    cache.pool.open_step(1)
    second.publish(8)
    assert second.table.tolist() == [0, 3]
    assert cache.pool.quarantined == 1, "block 2 rests: the step that computed it may still be open"
    cache.pool.complete_step(1)
    assert (cache.pool.quarantined, cache.pool.free) == (0, 5)
    cache.check_integrity()
    first.release()
    second.release()
    assert matched(cache, [*A, *B, 9]) == [0, 1]
    assert matched(cache, [*A, *C, 9]) == [0, 3]
    cache.check_integrity()


def test_the_closest_block_is_found_for_copying_up_to_the_limit() -> None:
    cache = make_cache(8)
    filled(cache, [*A, 20, 21, 8, 8]).release()
    filled(cache, [*A, 20, 21, 22, 8]).release()
    reader = make_blocks(cache, [*A, *B])
    reader.adopt(reader.match(7))
    node, shared = reader.match_partly(7)
    assert node is not None
    assert (node.block, shared) == (2, 3)
    assert reader.match_partly(6)[1] == 2
    assert reader.match_partly(4) == (None, 0)


def test_a_branch_that_is_evicted_whole_leaves_no_root_behind() -> None:
    cache = make_cache(2)
    for salt in (b"1", b"2", b"3", b"4"):
        filled(cache, [*A, *B], salt=salt).release()
        cache.check_integrity()
    assert len(cache._roots) == 1
    assert cache.evictions == 6


def test_names_outlive_a_release_so_that_the_same_sequence_finds_its_blocks_again() -> None:
    cache = make_cache(4)
    blocks = filled(cache, [*A, *B, 9])
    old_table = blocks.table
    blocks.release()
    assert old_table.tolist() == [0, 1, 2], "a plan that was handed out may still show it"
    assert blocks.table.tolist() == []
    assert [node.block for node in blocks.match(8)] == [0, 1]


def test_growing_stops_where_blocks_run_out_and_keeps_what_it_got() -> None:
    cache = make_cache(3)
    blocks = make_blocks(cache, range(20))
    assert not blocks.grow(5)
    assert len(blocks.table) == 3
    blocks.release()
    assert cache.pool.free == 3


def test_freed_blocks_are_used_again_in_the_order_of_the_sequence() -> None:
    cache = make_cache(8)
    blocks = make_blocks(cache, range(16))
    assert blocks.grow(4)
    blocks.release()
    again = make_blocks(cache, range(16))
    assert again.grow(4)
    assert again.table.tolist() == [0, 1, 2, 3]


def test_adopting_after_private_blocks_is_a_fault() -> None:
    cache = make_cache(4)
    blocks = make_blocks(cache, range(9))
    assert blocks.grow(1)
    with pytest.raises(IntegrityError, match="adopting after private blocks: 0 published of 1"):
        blocks.adopt([])


def test_integrity_notices_a_lost_hold_and_a_wrong_count() -> None:
    cache = make_cache(4)
    filled(cache, [*A, *B])
    cache.pool.refs[0] -= 1
    with pytest.raises(IntegrityError, match="block 1 is held but its parent 0 is not"):
        cache.check_integrity()
    cache.pool.refs[0] += 1
    cache.check_integrity()
    cache._cached += 1
    with pytest.raises(IntegrityError, match="0 cached, kept 1"):
        cache.check_integrity()


def test_case_F4_looking_up_costs_nothing_in_proportion_to_what_is_cached() -> None:
    cache = make_cache(200)
    for number in range(100):
        filled(cache, [number, *A, 1, 1, 1]).release()
    asked: list[bytes] = []
    find = cache._nodes.get

    class Counting(dict[bytes, object]):
        def get(self, key: bytes, default: object = None) -> object:
            asked.append(key)
            return find(key) or default

    cache._nodes = Counting()  # type: ignore[assignment]
    assert matched(cache, [500, *A, *B]) == []
    assert len(asked) == 1


def test_block_size_is_what_the_house_says() -> None:
    assert make_cache(1).block_size == BLOCK
