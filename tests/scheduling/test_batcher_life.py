"""A request's life in the batcher: ends, wishes, deadlines, events, timings, failures."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from engines.contract import Output, StepError, StepResult
from engines.sampling.params import SamplingParams
from server.engine import FinishReason, PriorityClass, RequestFinished, SequenceFinished, Timings, TokensEvent
from server.errors import DuplicateRequestError
from server.kv.block_pool import IntegrityError
from tests.scheduling.world import CONFIG, LANGUAGE, World, alone, make_request

LONG = 12


def prompt_that_says(length: int, *, ends: bool) -> list[int]:
    """A prompt after which the simulated language says ``length`` tokens, the last of them an end or not."""
    for first in range(3, 500):
        said = alone(make_request(0, [first, 3], length))
        if len(said) == length and (said[-1] == 2) == ends:
            return [first, 3]
    raise AssertionError("no such prompt")


def test_a_request_says_what_it_says_alone_and_ends_once() -> None:
    world = World()
    request = world.add(make_request(1, [5, 6, 7], 10))
    world.run()
    assert world.output[1] == alone(request)
    assert isinstance(world.events[-1], RequestFinished)
    assert isinstance(world.events[-2], SequenceFinished)


def test_the_three_natural_ends() -> None:
    world = World()
    world.add(make_request(1, prompt_that_says(4, ends=True), 9))
    world.add(make_request(2, prompt_that_says(4, ends=False), 4))
    stopping = make_request(3, [9, 9], 9, end_ids=())
    world.add(msgspec.structs.replace(stopping, stop_ids=(alone(stopping)[2],)))
    world.run()
    assert world.reason(1) is FinishReason.END
    assert world.output[1][-1] == 2, "the end token is delivered: the text stage hides it"
    assert world.reason(2) is FinishReason.LENGTH
    assert world.reason(3) is FinishReason.STOP_TOKEN


def test_an_end_that_is_also_the_last_allowed_token_is_an_end() -> None:
    world = World()
    world.add(make_request(1, prompt_that_says(4, ends=True), 4))
    world.run()
    assert world.reason(1) is FinishReason.END


def test_detecting_an_end_costs_no_row() -> None:
    world = World()
    world.add(make_request(1, prompt_that_says(4, ends=True), 9))
    world.run()
    assert len(world.plans) == 4
    assert world.batcher.stats().computed_tokens == 2 + 3


def test_the_context_is_a_limit_of_its_own() -> None:
    world = World(max_context=16)
    world.add(make_request(1, list(range(3, 16)), 100, end_ids=()))
    world.run()
    assert len(world.output[1]) == 3
    assert world.reason(1) is FinishReason.LENGTH


def test_no_tokens_wanted_warms_the_cache_and_ends_with_length() -> None:
    world = World()
    world.add(make_request(1, [5] * 9, 0))
    world.run()
    assert world.output[1] == []
    assert world.events[-2:] == [
        SequenceFinished(1, 0, FinishReason.LENGTH, 0, 0),
        RequestFinished(1, FinishReason.LENGTH, 9, 0, Timings(0.0, None, None, 1.0), 0),
    ]
    world.add(make_request(2, [5] * 9, 2))
    world.run()
    assert world.ends[2].cached_tokens == 8


def test_first_tokens_come_first_and_finishes_last_case_C8() -> None:
    world = World()
    world.add(make_request(1, prompt_that_says(2, ends=False), 2))
    world.step()
    world.add(make_request(2, [7, 7], 5))
    world.batcher.plan(world.now)
    rows = [1, 2]
    result = StepResult(2, [Output(row, (9,), (-0.5,), (((9, -0.5),),)) for row in rows])
    world.batcher.apply(result, 2.0)
    assert world.batcher.collect() == [
        TokensEvent(2, 0, (9,), (-0.5,), (((9, -0.5),),), first=True),
        TokensEvent(1, 0, (9,), (-0.5,), (((9, -0.5),),)),
        SequenceFinished(1, 0, FinishReason.LENGTH, 2, 0),
        RequestFinished(1, FinishReason.LENGTH, 2, 0, Timings(0.0, 1.0, 1.0, 2.0), 0),
    ]


def test_timings_are_those_that_were_passed_in() -> None:
    world = World()
    world.now = 10.0
    world.add(make_request(1, [5] * 20, 3, arrival=7.0, end_ids=()))
    world.run()
    # Two steps of 16 tokens for the prompt, two more tokens after that.
    assert world.ends[1].timings == Timings(queued=3.0, prefill=2.0, first_token=5.0, total=7.0)


# ---------------------------------------------------------------------- wishes, in every state


def test_case_D1_a_cancel_while_waiting_ends_the_request_alone() -> None:
    world = World()
    world.add(make_request(1, [5] * 4))
    world.batcher.cancel(1)
    assert world.start() is None
    assert world.events == [RequestFinished(1, FinishReason.CANCELLED, 4, 0, Timings(None, None, None, 0.0), 0)]


def test_case_D1_D9_a_cancel_amid_the_prompt_frees_everything_within_one_step() -> None:
    world = World()
    world.add(make_request(1, [5] * 40))
    world.step()
    world.batcher.cancel(1)
    assert world.start() is None
    assert world.batcher.stats().running == 0
    assert world.batcher.stats().blocks_cached == 4, "what was computed stays: case_D7"
    assert world.sequence_ends[1] == SequenceFinished(1, 0, FinishReason.CANCELLED, 0, 0)


def test_case_D12_a_cancel_in_flight_discards_what_the_step_draws() -> None:
    world = World()
    world.add(make_request(1, [5] * 4, LONG, end_ids=()))
    world.step()
    world.start()
    world.batcher.cancel(1)
    world.batcher.cancel(1, FinishReason.OVERLOADED)
    assert not world.batcher.collect(), "only recorded: a step names it"
    world.finish()
    assert world.sequence_ends[1] == SequenceFinished(1, 0, FinishReason.CANCELLED, 1, 1)
    assert world.batcher.idle
    assert world.batcher.stats().discarded_tokens == 1


def test_case_D4_a_cancel_after_the_end_changes_nothing() -> None:
    world = World()
    world.add(make_request(1, [5] * 4, 1))
    world.run()
    events = list(world.events)
    world.batcher.cancel(1)
    world.batcher.cancel(999)
    world.batcher.stop(1, 0, 1)
    assert world.start() is None
    assert world.events == events


def test_a_cancel_while_preempted_ends_both_sequence_and_request() -> None:
    world = World(blocks=8, max_context=32)
    for number in (1, 2):
        world.add(make_request(number, [number] * 8, 20, end_ids=()))
    while not world.batcher.stats().preemptions:
        world.step()
    world.batcher.cancel(2)
    world.run()
    assert world.ends[2].preemptions == 1
    assert world.sequence_ends[2].completion_tokens == len(world.output[2]) > 0


def test_stop_truncates_and_counts_the_rest_as_discarded() -> None:
    world = World()
    world.add(make_request(1, [5] * 4, LONG, end_ids=()))
    for _ in range(3):
        world.step()
    world.start()
    world.batcher.stop(1, 0, 2)
    world.finish()
    assert world.sequence_ends[1] == SequenceFinished(1, 0, FinishReason.STOP_STRING, 2, 2)
    assert world.reason(1) is FinishReason.STOP_STRING
    assert len(world.output[1]) == 3, "the third was delivered before anybody knew"


def test_the_first_wish_wins() -> None:
    world = World()
    for number in (1, 2):
        world.add(make_request(number, [5] * 4, LONG, end_ids=()))
    world.step()
    world.batcher.stop(1, 0, 1)
    world.batcher.cancel(1)
    world.batcher.cancel(2)
    world.batcher.stop(2, 0, 1)
    world.step()
    assert (world.reason(1), world.reason(2)) == (FinishReason.STOP_STRING, FinishReason.CANCELLED)


@pytest.mark.parametrize("index", [-1, 1])
def test_stop_of_a_sequence_that_is_not_there_is_ignored(index: int) -> None:
    world = World()
    world.add(make_request(1, [5] * 4, 3, end_ids=()))
    world.batcher.stop(1, index, 1)
    world.run()
    assert world.reason(1) is FinishReason.LENGTH


def test_case_D2_E2_E3_deadlines_end_waiting_and_running_requests_within_a_step() -> None:
    world = World()
    world.add(make_request(1, [5] * 4, 50, end_ids=(), deadline=3.0))
    world.add(make_request(2, [6] * 4, 50, end_ids=(), ttft_deadline=0.5))
    world.add(make_request(3, [7] * 60, 4, ttft_deadline=2.0, priority=PriorityClass.BATCH))
    assert world.batcher.next_expiry() == 0.5
    world.step()
    assert world.batcher.next_expiry() == 2.0, "request 2 has its first token"
    world.step()
    world.step()
    assert world.reason(3) is FinishReason.DEADLINE
    world.step()
    assert world.reason(1) is FinishReason.DEADLINE
    assert world.ends[1].timings.total == 3.0
    assert world.batcher.next_expiry() is None


# ---------------------------------------------------------------------- failures


def test_a_failed_step_ends_whom_it_named_and_publishes_nothing() -> None:
    world = World()
    world.add(make_request(1, [5] * 8, LONG, end_ids=()))
    world.step()
    world.add(make_request(2, [6] * 30))
    world.batcher.plan(world.now)
    cached = world.batcher.stats().blocks_in_use
    world.batcher.cancel(1)
    world.batcher.fail(2, 2.0)
    events = world.batcher.collect()
    assert [(e.request, e.reason) for e in events if isinstance(e, RequestFinished)] == [
        (1, FinishReason.CANCELLED),
        (2, FinishReason.ENGINE_FAILED),
    ]
    stats = world.batcher.stats()
    assert (cached, stats.blocks_in_use, stats.blocks_cached, stats.blocks_quarantined) == (3 + 4, 0, 2, 0)
    world.batcher.check_integrity()


def test_a_refused_plan_neither_opened_nor_closed_anything_at_the_runner() -> None:
    world = World()
    world.add(make_request(1, [5] * 4, 1))
    world.step()
    world.add(make_request(2, [6] * 4))
    plan = world.batcher.plan(1.0)
    assert plan is not None
    assert list(plan.closed) == [1]
    world.batcher.fail(plan.step, 1.0, started=False)
    world.batcher.collect()
    world.add(make_request(3, [7] * 4, 2))
    after = world.step()
    assert after is not None
    assert list(after.closed) == [1], "told again; sequence 2 was never open"


def test_requests_that_the_failed_step_did_not_name_go_on() -> None:
    world = World()
    world.add(make_request(1, [5] * 4, LONG, end_ids=()))
    world.step()
    survivor = world.add(make_request(2, [6] * 60, 3, priority=PriorityClass.BATCH))
    world.add(make_request(3, [7] * 20, 3))
    world.runner.faults.fail_next_step()
    world.run()
    assert world.reason(1) is FinishReason.ENGINE_FAILED
    assert world.reason(3) is FinishReason.ENGINE_FAILED
    assert world.output[2] == alone(survivor)


def test_an_outcome_that_does_not_fit_the_plan_changes_nothing() -> None:
    world = World()
    world.add(make_request(1, [5] * 4))
    plan = world.batcher.plan(0.0)
    assert plan is not None
    for outputs in ([], [Output(1, (5, 6))], [Output(2, (5,))], [Output(1, (5,)), Output(1, (5,))]):
        with pytest.raises(StepError, match="not one token, or the log-probabilities, for each row"):
            world.batcher.apply(StepResult(plan.step, outputs), 1.0)
    world.batcher.fail(plan.step, 1.0)
    assert world.batcher.idle


def test_steps_are_one_at_a_time() -> None:
    world = World()
    world.add(make_request(1, [5] * 4))
    world.batcher.plan(0.0)
    with pytest.raises(IntegrityError, match="planned while step 1 is in flight"):
        world.batcher.plan(0.0)
    with pytest.raises(IntegrityError, match="step 7 ended, in flight is 1"):
        world.batcher.fail(7, 0.0)


def test_abort_ends_everyone_once_whatever_the_state() -> None:
    world = World(config=replace(CONFIG, max_sequences=3))
    for number in range(6):
        world.add(make_request(number, [5 + number] * 8, 20, end_ids=()))
    world.step()
    world.start()
    world.batcher.cancel(0)
    world.batcher.abort(FinishReason.ENGINE_FAILED, 9.0)
    world._gather()
    assert sorted(world.ends) == list(range(6))
    assert world.reason(0) is FinishReason.CANCELLED
    assert world.reason(5) is FinishReason.ENGINE_FAILED
    stats = world.batcher.stats()
    assert (stats.running, stats.blocks_in_use, stats.blocks_quarantined) == (0, 0, 0)
    assert world.batcher.idle


def test_what_cannot_be_queued_is_refused() -> None:
    world = World()
    request = world.add(make_request(1, [5] * 4))
    with pytest.raises(DuplicateRequestError, match="request 1 is alive"):
        world.add(request)
    world.run()
    assert sorted(world.ends) == [1]


def test_the_runner_is_told_of_each_sequence_once_and_when_to_forget_it() -> None:
    world = World()
    request = make_request(1, [5, 6], 2, end_ids=())
    world.add(msgspec.structs.replace(request, sampling=SamplingParams(temperature=0.0, seed=77)))
    world.step()
    world.step()
    world.add(make_request(2, [7, 8], 1))
    world.step()
    opened = [[spec.sequence for spec in plan.opened] for plan in world.plans]
    assert opened == [[1], [], [2]]
    assert [list(plan.closed) for plan in world.plans] == [[], [], [1]]
    spec = world.plans[0].opened[0]
    assert (spec.prompt.tolist(), spec.sampling.seed, spec.index) == ([5, 6], 77, 0)
    assert LANGUAGE.vocab_size == 500
