"""The prefix cache through the batcher: what is reused, when it may be, and that nobody reads what is not there yet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.contract import BlockCopy, StepPlan
from server.engine import FinishReason, PriorityClass
from tests.scheduling.world import CONFIG, World, alone, make_request

STEM = [11, 12, 13, 14, 15, 16, 17, 18]


def tables(plan: StepPlan | None) -> list[list[int]]:
    assert plan is not None
    return [row.blocks[0].tolist() for row in plan.rows]


def new_tokens(plan: StepPlan | None) -> list[int]:
    assert plan is not None
    return [1 if row.tokens is None else len(row.tokens) for row in plan.rows]


def test_case_F3_a_shared_prefix_is_reused_and_reported() -> None:
    world = World()
    world.add(make_request(1, [*STEM, 20, 21], 1))
    world.run()
    second = world.add(make_request(2, [*STEM, 30, 31], 3))
    plan = world.step()
    assert new_tokens(plan) == [2]
    assert tables(plan)[0][:2] == [0, 1], "the first request's own blocks"
    world.run()
    assert world.output[2] == alone(second)
    assert world.ends[2].cached_tokens == 8
    assert (world.ends[1].cached_tokens, world.batcher.stats().cached_tokens) == (0, 8)


def test_case_F1_a_prompt_that_is_wholly_known_computes_its_last_token_alone() -> None:
    world = World()
    world.add(make_request(1, [*STEM, *STEM], 1))
    world.run()
    again = world.add(make_request(2, [*STEM, *STEM], 4))
    plan = world.step()
    assert new_tokens(plan) == [1], "three full blocks, and three tokens of the last by copying"
    assert plan is not None
    assert plan.copies == [BlockCopy(3, 4)]
    world.run()
    assert world.output[2] == alone(again)
    assert world.ends[2].cached_tokens == 15


def test_without_a_cache_every_prompt_is_computed_and_says_the_same() -> None:
    world = World(config=replace(CONFIG, prefix_cache=False))
    asked = [world.add(make_request(number, [*STEM, 20, 21], 3, n=1 + number % 3)) for number in (1, 2, 3)]
    world.run()
    stats = world.batcher.stats()
    assert [world.ends[one.id].cached_tokens for one in asked] == [0, 0, 0]
    assert (stats.blocks_cached, stats.blocks_in_use, stats.cached_tokens) == (0, 0, 0)
    for one in asked:
        for index in range(one.n):
            assert world.outputs[one.id, index] == alone(one, index=index)


def test_output_is_cached_too_so_that_a_conversation_goes_on_from_it() -> None:
    world = World()
    first = world.add(make_request(1, STEM, 8, end_ids=()))
    world.run()
    talk = world.add(make_request(2, [*STEM, *alone(first), 40], 3))
    world.run()
    # 15 of the 16 tokens were computed: three full blocks, and three tokens by copying... of a block that never filled.
    assert world.ends[2].cached_tokens == 12
    assert world.output[2] == alone(talk)


def test_case_F7_salts_keep_apart() -> None:
    world = World()
    world.add(make_request(1, [*STEM, 20], 1, salt=b"one"))
    world.run()
    world.add(make_request(2, [*STEM, 20], 1, salt=b"two"))
    world.add(make_request(3, [*STEM, 20], 1, salt=b"one"))
    world.run()
    assert (world.ends[2].cached_tokens, world.ends[3].cached_tokens) == (0, 8)


def test_nothing_is_shared_before_the_step_that_fills_it_has_completed() -> None:
    world = World(config=replace(CONFIG, max_prefix_waits=0))
    for number in (1, 2):
        world.add(make_request(number, [*STEM, 20 + number], 3, end_ids=()))
    plan = world.start()
    assert tables(plan) == [[0, 1, 2], [3, 4]], "both compute the same blocks, each its own"
    assert world.batcher.stats().blocks_cached == 0
    world.finish()
    refs = list(world.batcher.cache.pool.refs)
    assert (refs[0], refs[3]) == (0, 2), "now one serves both: the chunk's, which is published before rows that draw"
    world.run()
    assert all(world.output[n] == alone(make_request(n, [*STEM, 20 + n], 3, end_ids=())) for n in (1, 2))


def test_a_prompt_waits_for_the_block_that_another_computes_in_the_same_step() -> None:
    world = World()
    for number in (1, 2):
        world.add(make_request(number, [*STEM, 20 + number], 3, end_ids=()))
    assert new_tokens(world.step()) == [9]
    assert world.batcher.running == 2
    plan = world.step()
    assert new_tokens(plan) == [1, 1]
    assert tables(plan)[1][:2] == [0, 1]
    world.run()
    assert world.ends[2].cached_tokens == 8
    assert world.output[2] == alone(make_request(2, [*STEM, 22], 3, end_ids=()))


def test_a_long_prompt_is_followed_one_step_behind_and_computed_once() -> None:
    world = World(config=replace(CONFIG, step_tokens=10))
    for number in (1, 2, 3):
        world.add(make_request(number, [*STEM * 5, 20 + number], 2, end_ids=()))
    world.run()
    assert [world.ends[number].cached_tokens for number in (1, 2, 3)] == [0, 40, 40]
    assert world.batcher.stats().computed_tokens == 41 + 1 + 2 * (1 + 1)


def test_waiting_for_another_is_bounded() -> None:
    """The leader is of a class that the budget never reaches again; the follower does not wait for ever."""
    world = World(config=replace(CONFIG, max_prefix_waits=2, step_tokens=4, min_prefill_tokens=1))
    world.add(make_request(1, STEM * 6, 2, end_ids=()))
    follower = world.add(make_request(2, [*STEM * 2, 9], 2, end_ids=()))
    steps = 0
    while not world.output[2]:
        world.step()
        steps += 1
    assert steps < 20
    world.run()
    assert world.output[2] == alone(follower)


def test_the_follower_goes_on_when_the_leader_is_cancelled() -> None:
    world = World(config=replace(CONFIG, step_tokens=8))
    for number in (1, 2):
        world.add(make_request(number, [*STEM * 3, 20 + number], 3, end_ids=()))
    world.step()
    world.batcher.cancel(1)
    world.run()
    assert world.reason(1) is FinishReason.CANCELLED
    assert world.ends[2].cached_tokens == 8
    assert world.output[2] == alone(make_request(2, [*STEM * 3, 22], 3, end_ids=()))


def test_a_partly_matching_block_is_copied_and_its_source_held_until_the_step_is_over() -> None:
    world = World(blocks=16, max_context=64)
    world.add(make_request(1, [*STEM, 21, 22, 23, 24, 9], 1))
    world.run()
    reader = world.add(make_request(2, [*STEM, 21, 22, 50, 51], 3))
    plan = world.start()
    assert plan is not None
    (copy,) = plan.copies
    assert copy == BlockCopy(2, plan.rows[0].blocks[0][2])
    assert plan.rows[0].past == 10
    refs = world.batcher.cache.pool.refs
    assert refs[copy.source] == 1
    world.finish()
    assert refs[copy.source] == 0
    assert world.ends.keys() == {1}
    world.run()
    assert world.ends[2].cached_tokens == 10
    assert world.output[2] == alone(reader)


def test_a_copy_that_saves_too_little_is_not_made() -> None:
    world = World(config=replace(CONFIG, min_copy_tokens=3))
    world.add(make_request(1, [*STEM, 21, 22, 23, 24, 9], 1))
    world.run()
    world.add(make_request(2, [*STEM, 21, 22, 50, 51], 1))
    plan = world.step()
    assert plan is not None
    assert (plan.copies, plan.rows[0].past) == ([], 8)


def test_the_source_of_a_copy_is_not_evicted_for_its_own_target() -> None:
    world = World(blocks=4, max_context=16)
    world.add(make_request(1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], 1))
    world.run()
    # All four blocks: three cached, one free. The reader shares 7 tokens: one block and three tokens of the next.
    reader = world.add(make_request(2, [1, 2, 3, 4, 5, 6, 7, 70, 71, 72], 4, end_ids=()))
    plan = world.step()
    assert plan is not None
    assert plan.copies == [BlockCopy(1, 3)]
    world.run()
    assert world.output[2] == alone(reader)


def test_case_D7_a_cancelled_prompt_leaves_what_it_computed() -> None:
    world = World(config=replace(CONFIG, step_tokens=8))
    world.add(make_request(1, STEM * 4, 3))
    world.step()
    world.step()
    world.batcher.cancel(1)
    again = world.add(make_request(2, STEM * 4, 3))
    world.run()
    assert world.ends[2].cached_tokens == 16
    assert world.output[2] == alone(again)


def test_a_failed_step_leaves_nothing_to_be_found() -> None:
    world = World(config=replace(CONFIG, step_tokens=8))
    world.add(make_request(1, STEM * 4, 3))
    world.step()
    world.runner.faults.fail_next_step()
    world.step()
    assert world.reason(1) is FinishReason.ENGINE_FAILED
    again = world.add(make_request(2, STEM * 4, 3))
    world.run()
    assert world.ends[2].cached_tokens == 8, "the first step's blocks; the failed step's hold garbage"
    assert world.output[2] == alone(again)


def test_a_freed_block_rests_until_the_step_that_names_it_has_completed() -> None:
    world = World()
    world.add(make_request(1, [5] * 6, 9, end_ids=()))
    world.start()
    world.batcher.cancel(1)
    pool = world.batcher.cache.pool
    seen: list[tuple[int, int]] = []

    class Watched(type(pool)):  # type: ignore[misc]
        __slots__ = ()

        def complete_step(self, step: int) -> None:
            seen.append((self.quarantined, self.free))
            super().complete_step(step)

    pool.__class__ = Watched
    world.finish()
    assert seen == [(1, 62)], "the half-filled block rests while the step is open; the full one is cached"
    assert (pool.quarantined, pool.free) == (0, 63)


def test_cached_blocks_give_way_to_new_prompts_oldest_first() -> None:
    world = World(blocks=16, max_context=64)
    for number in range(4):
        world.add(make_request(number, [9 + number] * 16, 1))
        world.run()
    assert world.batcher.stats().blocks_cached == 16
    world.add(make_request(9, [99] * 17, 1))
    world.run()
    assert world.batcher.evictions == 5
    for number, cached in ((3, 15), (2, 15), (1, 12)):
        request = 20 + number
        world.add(make_request(request, [9 + number] * 16, 1))
        world.run()
        assert world.ends[request].cached_tokens >= cached - 4
    assert world.batcher.stats().blocks_in_use == 0


@pytest.mark.parametrize("priority", list(PriorityClass))
def test_classes_share_what_salts_allow(priority: PriorityClass) -> None:
    world = World()
    world.add(make_request(1, [*STEM, 20], 1))
    world.run()
    world.add(make_request(2, [*STEM, 21], 1, priority=priority))
    world.run()
    assert world.ends[2].cached_tokens == 8
