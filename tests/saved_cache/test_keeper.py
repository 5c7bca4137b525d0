"""The keeper, around the real batcher and the simulated runner: what comes back after a restart, and what never does."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from server.cache_tasks import PinPrompt
from server.kv.node import NO_BLOCK
from server.saved_cache.keeper import CacheKeeper, KeeperSettings
from tests.saved_cache.test_file import room_for
from tests.scheduling.world import World, alone, make_request

STEM = [11, 12, 13, 14, 15, 16, 17, 18]
SLOW_CLOCK_STEP = 0.01
"""Seconds that pass at each look at the clock: more than a slice, so that each slice moves one block."""


class SlowClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += SLOW_CLOCK_STEP
        return self.now


def keeper_of(world: World, path: Path, **changes: object) -> CacheKeeper:
    settings = KeeperSettings(path, 1 << 20, save_timeout=20.0, interval=0.0, restore_timeout=20.0)
    wished = {name: getattr(settings, name) for name in settings.__struct_fields__} | changes
    fingerprint = str(wished.pop("fingerprint", "test"))
    clock = wished.pop("clock", None)
    more = {} if clock is None else {"clock": clock}
    batcher = world.batcher
    return CacheKeeper(
        batcher.cache, batcher.prefixes, world.runner, KeeperSettings(**wished), fingerprint=fingerprint, **more
    )


def restarted(path: Path, *, blocks: int = 64, **changes: object) -> tuple[World, CacheKeeper]:
    world = World(blocks=blocks)
    keeper = keeper_of(world, path, **changes)
    keeper.restore()
    world.batcher.check_integrity()
    return world, keeper


def saved(world: World, path: Path, **changes: object) -> CacheKeeper:
    keeper = keeper_of(world, path, **changes)
    keeper.finish(20.0)
    return keeper


def test_after_a_restart_a_known_prefix_is_found_and_means_the_same(tmp_path: Path) -> None:
    before = World()
    before.add(make_request(1, [*STEM, 20, 21], 6, end_ids=()))
    before.run()
    assert saved(before, tmp_path / "kv").stats.saves == {"saved": 1}
    after, keeper = restarted(tmp_path / "kv")
    assert keeper.stats.restores == {"restored": 1}
    assert after.batcher.cache.cached == keeper.stats.restored_blocks == 3
    asked = after.add(make_request(1, [*STEM, 30, 31], 5))
    after.run()
    assert after.ends[1].cached_tokens == 8
    assert after.output[1] == alone(asked)


def test_salts_keep_their_tenants_apart_across_a_restart_case_F7(tmp_path: Path) -> None:
    before = World()
    before.add(make_request(1, [*STEM, 20], 1, salt=b"mine"))
    before.run()
    saved(before, tmp_path / "kv")
    assert b"mine" not in (tmp_path / "kv").read_bytes()
    after, _ = restarted(tmp_path / "kv")
    for number, salt in enumerate((b"mine", b"theirs", b""), start=1):
        after.add(make_request(number, [*STEM, 30], 1, salt=salt))
    after.run()
    assert [after.ends[number].cached_tokens for number in (1, 2, 3)] == [8, 0, 0]


def test_random_traffic_gives_the_same_answers_after_a_restart_into_any_pool(tmp_path: Path) -> None:
    random_ = random.Random(5)  # noqa: S311 - the same traffic each time
    prompts = [[random_.choice((3, 4)) for _ in range(random_.randint(1, 30))] for _ in range(60)]
    before = World()
    for number, prompt in enumerate(prompts[:40], start=1):
        before.add(make_request(number, prompt, random_.randint(1, 12)))
    before.run()
    saved(before, tmp_path / "kv")
    held = before.batcher.cache.cached
    for blocks in (16, 24, 64, 100):
        after, keeper = restarted(tmp_path / "kv", blocks=blocks)
        assert keeper.stats.restored_blocks == min(held, blocks)
        asked = [after.add(make_request(number, prompt, 8)) for number, prompt in enumerate(prompts, start=1)]
        after.run()
        assert {one.id: after.output[one.id] for one in asked} == {one.id: alone(one) for one in asked}


@pytest.mark.parametrize("size", [1, 2, 5])
def test_what_was_used_last_is_saved_first_and_goes_last(tmp_path: Path, size: int) -> None:
    """A bound on the file leaves out the coldest; after the restart the coldest is evicted first."""
    before = World()
    for number, first in enumerate((40, 50, 60), start=1):
        before.add(make_request(number, [first] * 9, 1))
        before.run()
    keeper = keeper_of(before, tmp_path / "kv")
    limit = size * keeper._identity.record_bytes
    saved(before, tmp_path / "kv", max_bytes=limit)
    after, keeper = restarted(tmp_path / "kv")
    cache = after.batcher.cache
    assert keeper.stats.restored_blocks == size
    kept = [node.tokens[0] for node in cache.hottest()]
    assert kept == [60, 60, 50, 50, 40, 40][:size]
    while cache.pool.free:
        assert cache.allocate() != NO_BLOCK
    order = []
    while cache.cached:
        left = {node.block: node.tokens[0] for node in cache.hottest()}
        order.append(left[cache.allocate()])
    assert order == kept[::-1]


def test_a_damaged_or_a_foreign_file_changes_nothing_and_says_why(tmp_path: Path) -> None:
    before = World()
    before.add(make_request(1, [*STEM, 20], 1))
    before.run()
    path = tmp_path / "kv"
    saved(before, path)
    intact = path.read_bytes()
    damaged = bytearray(intact)
    damaged[len(intact) - 200] ^= 1  # in the last block: the first is put back before it is seen
    for content, fingerprint, outcome in (
        (bytes(damaged), "test", "corrupt"),
        (intact[:-50], "test", "corrupt"),
        (b"", "test", "corrupt"),
        (intact, "another engine", "foreign"),
        (b"#!/bin/sh\n" * 100, "test", "foreign"),
    ):
        path.write_bytes(content)
        world, keeper = restarted(path, fingerprint=fingerprint)
        assert keeper.stats.restores == {outcome: 1}
        assert (world.batcher.cache.cached, world.batcher.cache.pool.free) == (0, 64)
        world.add(make_request(1, [*STEM, 20], 1))
        world.run()
        assert world.ends[1].cached_tokens == 0
    path.unlink()
    path.mkdir()
    assert restarted(path)[1].stats.restores == {"unreadable": 1}


def test_no_file_is_no_trouble(tmp_path: Path) -> None:
    assert restarted(tmp_path / "kv")[1].stats.restores == {}


def test_where_the_time_is_up_the_hottest_are_there(tmp_path: Path) -> None:
    before = World(max_context=200, blocks=64)
    before.add(make_request(1, list(range(3, 203))[:180], 1))
    before.run()
    assert saved(before, tmp_path / "kv").stats.saved_blocks == 45
    after, keeper = restarted(tmp_path / "kv", restore_timeout=0.0)
    assert 0 < keeper.stats.restored_blocks < 45
    assert [node.depth for node in after.batcher.cache.hottest()] == [*range(1, keeper.stats.restored_blocks + 1)]


def test_a_save_amid_traffic_is_whole_though_blocks_are_evicted_under_it(tmp_path: Path) -> None:
    """Slice by slice between steps, while others take blocks away: what is in the file is right, and the steps go on."""
    random_ = random.Random(6)  # noqa: S311 - the same traffic each time
    world = World(blocks=20)
    keeper = keeper_of(world, tmp_path / "kv", interval=0.02, clock=SlowClock())
    slices = 0
    for number in range(1, 120):
        world.add(make_request(number, [random_.choice((3, 4, 5)) for _ in range(random_.randint(4, 24))], 4))
        while not world.batcher.idle:
            world.step()
            keeper.turn()
            slices += keeper.saving
    while keeper.saving:
        keeper.turn()
    assert slices > 100
    assert world.batcher.evictions > 50
    assert keeper.stats.saves["saved"] > 1
    assert "failed" not in keeper.stats.saves
    after, restored = restarted(tmp_path / "kv")
    assert restored.stats.restores == {"restored": 1}
    asked = [after.add(make_request(n, [random_.choice((3, 4, 5)) for _ in range(20)], 6)) for n in range(1, 40)]
    after.run()
    assert {one.id: after.output[one.id] for one in asked} == {one.id: alone(one) for one in asked}


def test_nothing_new_is_not_saved_again(tmp_path: Path) -> None:
    before = World()
    before.add(make_request(1, [*STEM, 20], 1))
    before.run()
    saved(before, tmp_path / "kv")
    stood = (tmp_path / "kv").stat().st_mtime_ns
    _, keeper = restarted(tmp_path / "kv")
    keeper.finish(20.0)
    assert keeper.stats.saves == {}
    assert (tmp_path / "kv").stat().st_mtime_ns == stood


def test_a_full_disk_is_survived_and_tried_again(tmp_path: Path) -> None:
    world = World()
    world.add(make_request(1, [*STEM, 20], 1))
    world.run()
    keeper = keeper_of(world, tmp_path / "kv")
    with room_for(300):
        keeper.finish(20.0)
    assert keeper.stats.saves == {"failed": 1}
    assert list(tmp_path.iterdir()) == []
    keeper.finish(20.0)
    assert keeper.stats.saves == {"failed": 1, "saved": 1}


def test_no_time_at_the_end_is_no_save(tmp_path: Path) -> None:
    world = World()
    world.add(make_request(1, [*STEM, 20], 1))
    world.run()
    keeper = keeper_of(world, tmp_path / "kv")
    keeper.finish(0.0)
    assert keeper.stats.saves == {}
    assert list(tmp_path.iterdir()) == []


def test_pins_go_on_for_the_rest_of_their_time(tmp_path: Path) -> None:
    """Three pins: one that lasts, one that ends while the server is down, one whose blocks a smaller pool has no room for."""
    before = World()
    clock = time.monotonic
    for number, first in enumerate((40, 50, 60), start=1):
        before.add(make_request(number, [first] * 9, 1))
        before.run()
    for first, seconds in ((40, 1e3), (50, 1e-3), (60, 1e3)):
        before.batcher.prefixes.perform(PinPrompt((first,) * 8, b"", seconds), clock())
    saved(before, tmp_path / "kv")
    after, _ = restarted(tmp_path / "kv")
    pinned = after.batcher.prefixes.pins()
    assert sorted(after.batcher.cache.find(name).tokens[0] for name, _ in pinned) == [40, 60]  # type: ignore[union-attr]
    assert all(900 < until - clock() <= 1000 for _, until in pinned)
    after.batcher.check_integrity()
    small, keeper = restarted(tmp_path / "kv", blocks=17)
    assert keeper.stats.restores == {"restored": 1}
    assert small.batcher.prefixes.pins() == [], "one sequence of the greatest length must still fit"


def test_a_new_pin_is_something_new(tmp_path: Path) -> None:
    world = World()
    world.add(make_request(1, [*STEM, 20], 1))
    world.run()
    keeper = saved(world, tmp_path / "kv")
    world.batcher.prefixes.perform(PinPrompt(tuple(STEM), b"", 1e3), time.monotonic())
    keeper.finish(20.0)
    assert keeper.stats.saves == {"saved": 2}
    assert restarted(tmp_path / "kv")[0].batcher.prefixes.pinned == 2


def test_an_engine_that_goes_amid_a_save_leaves_the_file_to_the_next_one(tmp_path: Path) -> None:
    """A swapped-out engine is closed without a last save. Its writer once waited for further blocks for ever, and kept the file."""
    before = World()
    before.add(make_request(1, [*STEM, 20, 21], 6, end_ids=()))
    before.run()
    keeper = keeper_of(before, tmp_path / "kv", interval=1e-9, clock=SlowClock())
    keeper.turn()
    save = keeper._save
    assert save is not None
    keeper.abandon()
    assert save.writer.wait(10.0)
    assert not keeper.saving
    assert list(tmp_path.iterdir()) == []
    assert saved(before, tmp_path / "kv").stats.saves == {"saved": 1}
