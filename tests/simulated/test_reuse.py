"""The executor's blocks: never lost, never counted twice, evicted only when nobody holds them."""

from __future__ import annotations

import random

import pytest

from engines.contract import EngineError
from engines.simulated.reuse import BlockKey, Holding, ReusePool


def keys(*words: int) -> list[BlockKey]:
    return [(None, index, word) for index, word in enumerate(words)]


def test_published_blocks_are_found_from_the_start_only() -> None:
    pool = ReusePool(10)
    holding = pool.open(keys(1, 2, 3))
    pool.grow(holding, 3)
    pool.publish(holding, keys(1, 2, 3))
    pool.close(holding)
    assert len(pool.open(keys(1, 2, 9))) == 2
    assert len(pool.open(keys(9, 2, 3))) == 0
    assert (pool.reused, pool.missed) == (2, 3 + 1 + 3)


def test_the_end_of_a_history_goes_first() -> None:
    pool = ReusePool(4)
    old = pool.open([])
    pool.grow(old, 3)
    pool.publish(old, keys(1, 2, 3))
    pool.close(old)
    new = pool.open([])
    pool.grow(new, 2)
    assert len(pool.open(keys(1, 2, 3))) == 2


def test_held_blocks_are_not_evicted() -> None:
    pool = ReusePool(4)
    holder = pool.open([])
    pool.grow(holder, 3)
    pool.publish(holder, keys(1, 2, 3))
    other = pool.open([])
    with pytest.raises(EngineError, match="1 too many in use of 4"):
        pool.grow(other, 2)


def test_a_block_published_twice_stays_double_until_closed() -> None:
    pool = ReusePool(10)
    first, second = pool.open([]), pool.open([])
    for holding in (first, second):
        pool.grow(holding, 2)
        pool.publish(holding, keys(1, 2))
        pool.check_integrity([first, second])
    assert pool.used == 4
    pool.close(second)
    assert pool.used == 2
    pool.check_integrity([first])


def test_lost_blocks_are_noticed() -> None:
    pool = ReusePool(10)
    holding = pool.open([])
    pool.grow(holding, 2)
    with pytest.raises(EngineError, match="2 private"):
        pool.check_integrity([])


@pytest.mark.parametrize("seed", range(10))
def test_random_lives_keep_the_books(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - the same lives every run
    pool = ReusePool(20)
    lives: list[tuple[Holding, list[BlockKey]]] = []
    for _ in range(500):
        if len(lives) < 4 and draw.random() < 0.5:
            history = keys(*(draw.randrange(2) for _ in range(5)))
            history = [(salt, index, hash(tuple(history[: index + 1]))) for salt, index, _ in history]
            lives.append((pool.open(history[: draw.randint(0, 5)]), history))
        elif lives:
            holding, history = draw.choice(lives)
            pool.grow(holding, draw.randint(0, 5))
            pool.publish(holding, history[: draw.randint(0, len(holding))])
            if draw.random() < 0.3:
                pool.close(holding)
                lives = [life for life in lives if life[0] is not holding]
        pool.check_integrity([holding for holding, _ in lives])
        assert pool.used == _held(lives)


def _held(lives: list[tuple[Holding, list[BlockKey]]]) -> int:
    shared = {key for holding, _ in lives for key in holding.shared}
    return len(shared) + sum(holding.private for holding, _ in lives)
