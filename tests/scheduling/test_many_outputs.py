"""Requests for several outputs: the prompt is computed once, each output is what it would be alone, and each has its own end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.contract import Score
from server.engine import FinishReason, GenerationRequest
from tests.scheduling.world import BLOCK, CONFIG, World, alone, make_request

WIDE = replace(CONFIG, step_tokens=64, max_sequences=16, long_prompt_tokens=1000)


def judge(world: World, request: GenerationRequest) -> None:
    for index in range(request.n):
        assert world.outputs[request.id, index] == alone(request, index=index)


@pytest.mark.parametrize("length", [BLOCK * 8, BLOCK * 8 + 1, BLOCK * 9 - 1, 1])
def test_the_prompt_is_computed_once_and_the_partial_block_is_copied(length: int) -> None:
    """Each output after the first computes the prompt's last token, to draw from it, and nothing else of the prompt."""
    world = World(blocks=128, config=WIDE)
    request = world.add(make_request(1, [3 + at % 5 for at in range(length)], 6, n=8, temperature=1.0, end_ids=()))
    world.run()
    judge(world, request)
    assert len({tuple(world.outputs[1, index]) for index in range(8)}) == 8
    stats = world.batcher.stats()
    decoded = 8 * 5
    assert stats.computed_tokens == length + 7 + decoded
    assert (stats.prompt_tokens, stats.cached_tokens) == (length, 0)
    assert world.ends[1].cached_tokens == 0


def test_outputs_share_the_full_blocks_of_the_prompt() -> None:
    world = World(blocks=128, config=WIDE)
    world.add(make_request(1, list(range(3, 3 + 8 * BLOCK + 2)), 20, n=5, end_ids=()))
    for _ in range(3):
        world.step()
    tables = [row.blocks[0].tolist() for row in world.plans[-1].rows]
    assert len(tables) == 5
    assert all(table[:8] == tables[0][:8] for table in tables)
    assert len({table[8] for table in tables}) == 5


def test_the_others_wait_for_the_first_and_are_not_lost_when_it_fails() -> None:
    world = World(config=WIDE)
    request = world.add(make_request(1, [5, 6, 7, 8, 9], 4, n=3, temperature=1.0, end_ids=()))
    world.runner.faults.fail_next_step()
    world.run()
    assert world.all_ends[1, 0].reason is FinishReason.ENGINE_FAILED
    for index in (1, 2):
        assert world.outputs[1, index] == alone(request, index=index)
        assert world.all_ends[1, index].reason is FinishReason.LENGTH
    assert world.reason(1) is FinishReason.ENGINE_FAILED


def test_a_stop_of_one_leaves_the_others_alone() -> None:
    world = World(blocks=128, config=WIDE)
    request = world.add(make_request(1, [5, 6, 7], 12, n=8, temperature=1.0, end_ids=()))
    for _ in range(4):
        world.step()
    world.batcher.stop(1, 2, 1)
    world.run()
    assert world.all_ends[1, 2].reason is FinishReason.STOP_STRING
    assert world.all_ends[1, 2].completion_tokens == 1
    for index in (0, 1, 3, 4, 5, 6, 7):
        assert world.outputs[1, index] == alone(request, index=index)
        assert world.all_ends[1, index].reason is FinishReason.LENGTH
    assert world.reason(1) is FinishReason.LENGTH


@pytest.mark.parametrize("steps", range(6))
def test_a_cancel_ends_all_wherever_they_are_case_D8(steps: int) -> None:
    world = World(blocks=20, config=replace(WIDE, max_sequences=2, step_tokens=4))
    world.add(make_request(1, list(range(3, 12)), 12, n=8, end_ids=()))
    for _ in range(steps):
        world.step()
    world.batcher.cancel(1)
    world.run()
    assert world.reason(1) is FinishReason.CANCELLED
    stats = world.batcher.stats()
    assert (stats.running, stats.waiting_tokens, stats.blocks_in_use) == (0, 0, 0)


def test_preemption_of_one_changes_no_output() -> None:
    world = World(blocks=33, config=replace(WIDE, max_sequences=8, watermark=0.0))
    request = world.add(make_request(1, list(range(3, 12)), 40, n=8, temperature=1.0, end_ids=()))
    world.run()
    judge(world, request)
    assert world.ends[1].preemptions > 0


def test_more_outputs_than_seats_take_turns() -> None:
    world = World(blocks=128, config=replace(WIDE, max_sequences=2))
    request = world.add(make_request(1, list(range(3, 3 + 4 * BLOCK)), 5, n=7, temperature=1.0))
    world.run()
    judge(world, request)


def test_prompt_scores_are_computed_whole_whatever_is_cached_and_still_published() -> None:
    world = World(blocks=128, config=replace(WIDE, max_score_tokens=5))
    prompt = list(range(3, 3 + 5 * BLOCK + 2))
    world.add(make_request(1, prompt, 3, end_ids=()))
    world.run()
    before = world.batcher.stats().computed_tokens
    request = world.add(make_request(2, prompt, 3, end_ids=(), prompt_logprobs=2))
    world.run()
    assert sorted(world.scores[2]) == list(range(1, len(prompt)))
    assert world.outputs[2, 0] == alone(request)
    assert world.ends[2].cached_tokens == 0
    assert world.batcher.stats().computed_tokens - before == len(prompt) + 2
    scored = [row.want for plan in world.plans for row in plan.rows if isinstance(row.want, Score)]
    assert {want.top for want in scored} == {2}
    assert max(len(want.targets) for want in scored) == 5
    world.add(make_request(3, prompt, 3, end_ids=()))
    world.run()
    assert world.ends[3].cached_tokens > 5 * BLOCK - 1


def test_scores_without_output() -> None:
    world = World(config=WIDE)
    world.add(make_request(1, list(range(3, 12)), 0, prompt_logprobs=0))
    world.add(make_request(2, [7], 0, prompt_logprobs=0))
    world.run()
    assert sorted(world.scores[1]) == list(range(1, 9))
    assert not world.scores[2]
    assert world.reason(1) is world.reason(2) is FinishReason.LENGTH
