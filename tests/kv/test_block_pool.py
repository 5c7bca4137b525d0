"""Reference counts, the free stack, and the rest that a freed block takes."""

from __future__ import annotations

import pytest

from server.kv.block_pool import BlockPool, IntegrityError


def test_blocks_are_handed_out_in_order_and_the_last_freed_comes_first() -> None:
    pool = BlockPool(4)
    assert [pool.take(), pool.take(), pool.take()] == [0, 1, 2]
    pool.drop(1)
    pool.rest([1])
    assert [pool.take(), pool.take()] == [1, 3]
    pool.check_integrity([])


def test_an_empty_pool_hands_out_nothing() -> None:
    pool = BlockPool(1)
    pool.take()
    with pytest.raises(IntegrityError, match="none free"):
        pool.take()


def test_only_the_last_holder_frees_a_block() -> None:
    pool = BlockPool(1)
    block = pool.take()
    assert not pool.retain(block)
    assert not pool.drop(block)
    assert pool.in_use == 1
    assert pool.drop(block)
    assert pool.in_use == 0
    assert pool.retain(block), "the first holder of a block that was cached"


def test_a_block_released_too_often_is_a_fault() -> None:
    pool = BlockPool(1)
    pool.drop(pool.take())
    with pytest.raises(IntegrityError, match="block 0 was released more often than it was held"):
        pool.drop(0)


def test_a_freed_block_rests_until_every_step_opened_before_has_completed() -> None:
    pool = BlockPool(3)
    blocks = [pool.take() for _ in range(3)]
    for block in blocks:
        pool.drop(block)
    pool.open_step(1)
    pool.rest([blocks[0]])
    pool.open_step(2)
    pool.rest([blocks[1]])
    assert (pool.free, pool.quarantined) == (0, 2)
    pool.complete_step(1)
    assert (pool.free, pool.quarantined) == (1, 1)
    pool.complete_step(2)
    pool.rest([blocks[2]])
    assert (pool.free, pool.quarantined) == (3, 0)
    pool.check_integrity([])


def test_a_skipped_step_releases_with_the_next() -> None:
    pool = BlockPool(1)
    pool.drop(pool.take())
    pool.open_step(3)
    pool.rest([0])
    pool.open_step(7)
    pool.complete_step(7)
    assert pool.free == 1


def test_steps_open_and_complete_in_order() -> None:
    pool = BlockPool(1)
    pool.open_step(2)
    with pytest.raises(IntegrityError, match="step 2 was opened after step 2"):
        pool.open_step(2)
    with pytest.raises(IntegrityError, match="step 3 completed; opened 2"):
        pool.complete_step(3)
    pool.complete_step(2)
    with pytest.raises(IntegrityError, match="completed before 2"):
        pool.complete_step(2)


def test_law_1_is_checked_block_by_block() -> None:
    pool = BlockPool(4)
    pool.take()
    pool.drop(pool.take())
    with pytest.raises(IntegrityError, match=r"3 blocks accounted for of 4; lost \[1\]"):
        pool.check_integrity([])
    pool.check_integrity([1])
    with pytest.raises(IntegrityError, match="block 0 is cached and in use"):
        pool.check_integrity([0, 1])
    pool.refs[2] = 1
    with pytest.raises(IntegrityError, match="counted 2 blocks in use"):
        pool.check_integrity([1])


def test_a_pool_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        BlockPool(0)
