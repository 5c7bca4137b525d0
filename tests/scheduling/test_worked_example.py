"""The worked example of docs/prefix-cache.md, step by step."""

from __future__ import annotations

from engines.contract import BlockCopy
from server.scheduling.config import BatcherConfig
from tests.scheduling.world import World, make_request

Tree = dict[int, int | None]

CONFIG = BatcherConfig(max_sequences=4, step_tokens=12, min_prefill_tokens=4, min_copy_tokens=2, watermark=0.0)


def refs(world: World) -> list[int]:
    return list(world.batcher.cache.pool.refs)


def tree(world: World) -> Tree:
    """Published blocks, each with the block before it; None under a root."""
    nodes = world.batcher.cache._nodes.values()
    parents = {node.block: node.parent for node in nodes}
    return {
        block: None if parent is None or parent.parent is None else parent.block for block, parent in parents.items()
    }


def rows(world: World) -> list[tuple[list[int] | None, int, list[int]]]:
    """(tokens, past, table) of each row of the last plan."""
    plan = world.plans[-1]
    return [(row.tokens.tolist() if row.tokens else None, row.past, row.blocks[0].tolist()) for row in plan.rows]


def counts(world: World) -> tuple[int, int]:
    stats = world.batcher.stats()
    return stats.blocks_free, stats.blocks_cached


def test_the_worked_example() -> None:
    world = World(blocks=8, max_context=32, config=CONFIG)
    world.add(make_request(1, range(1, 10), 4, end_ids=()))

    world.start()
    assert rows(world) == [(list(range(1, 10)), 0, [0, 1, 2])]
    assert (refs(world), tree(world)) == ([1, 1, 1, 0, 0, 0, 0, 0], {})
    world.finish()
    assert (refs(world), tree(world)) == ([1, 1, 1, 0, 0, 0, 0, 0], {0: None, 1: 0})

    for _ in range(3):
        world.step()
    assert world.batcher.idle
    assert (counts(world), tree(world)) == ((5, 3), {0: None, 1: 0, 2: 1})

    world.add(make_request(2, [*range(1, 9), 20, 21], 2, end_ids=()))
    world.add(make_request(3, [*range(1, 7), 30, 31, 32], 2, end_ids=()))
    world.start()
    assert rows(world) == [([20, 21], 8, [0, 1, 3]), ([30, 31, 32], 6, [0, 4, 5])]
    assert world.plans[-1].copies == [BlockCopy(1, 4)]
    assert refs(world) == [2, 2, 0, 1, 1, 1, 0, 0]
    world.finish()
    assert (refs(world), tree(world)) == ([2, 1, 0, 1, 1, 1, 0, 0], {0: None, 1: 0, 2: 1, 4: 0})

    world.step()
    assert (world.ends[2].cached_tokens, world.ends[3].cached_tokens) == (8, 6)
    assert (counts(world), tree(world)) == ((4, 4), {0: None, 1: 0, 2: 1, 4: 0})

    world.add(make_request(4, range(40, 60), 1))
    world.step()
    assert rows(world) == [(list(range(40, 52)), 0, [5, 3, 6])]
    world.start()
    assert rows(world) == [(list(range(52, 60)), 12, [5, 3, 6, 7, 2])]
    assert refs(world) == [0, 0, 1, 1, 0, 1, 1, 1]
    assert tree(world) == {0: None, 1: 0, 4: 0, 5: None, 3: 5, 6: 3}
    world.finish()
    assert counts(world) == (0, 8)
    assert tree(world) == {0: None, 1: 0, 4: 0, 5: None, 3: 5, 6: 3, 7: 6, 2: 7}

    evicted = [world.batcher.cache.allocate() for _ in range(3)]
    assert evicted == [1, 4, 0]
