"""What an executor's answers tell of its pace, and what is predicted from it."""

from __future__ import annotations

import msgspec
import pytest

from engines.contract import ExecutorFinish, ExecutorLimits
from engines.manifest import StepProfile
from server.engine import FinishReason, PriorityClass
from server.errors import OverloadedError
from server.scheduling.config import BatcherConfig
from server.scheduling.executor_feed import ExecutorFeed
from tests.scheduling.test_executor_feed import answer
from tests.scheduling.world import make_request

LIMITS = ExecutorLimits(
    vocab_size=500, block_size=4, block_count=1024, max_batch_size=8, max_num_tokens=100, max_context=1024
)
ONE_SEAT = msgspec.structs.replace(LIMITS, max_batch_size=1)
WRONG = StepProfile(0.02, 0.001, 0.002, 0.0, 0.0, "another machine", 0.5)


def make_feed(limits: ExecutorLimits = LIMITS, profile: StepProfile = WRONG) -> ExecutorFeed:
    return ExecutorFeed(limits, config=BatcherConfig(order="arrival"), profile=profile)


def predict(feed: ExecutorFeed, prompt: int, request: int = 10_000) -> float:
    return feed.forecast.first_token(make_request(request, [3] * prompt), prompt, feed.outlook(), 0.0)


def converse(feed: ExecutorFeed, rounds: int, cost: StepProfile) -> float:
    """One request after the other, of different lengths, each drawing three tokens, on an engine of this true cost. Returns the time."""
    now = 0.0
    for number in range(rounds):
        prompt = 10 + number * 37 % 90
        feed.add(make_request(number, [3] * prompt, 3, arrival=now), now)
        feed.feed(now)
        now += cost.fixed + cost.per_new_token * prompt
        feed.apply([answer(number, 7)], now)
        for finish in (None, ExecutorFinish.LENGTH):
            now += cost.fixed + cost.per_decode
            feed.apply([answer(number, 7, finish=finish)], now)
        feed.collect()
        feed.check_integrity()
    return now


def test_the_pace_is_learned_from_the_answers() -> None:
    truth = StepProfile(0.05, 0.002, 0.005, 0.0, 0.0, "this machine", 0.0)
    feed = make_feed()
    before = predict(feed, 80)
    converse(feed, 200, truth)
    assert before < 0.11
    assert predict(feed, 80) == pytest.approx(0.05 + 80 * 0.002, rel=0.1)


def test_prompts_inside_and_streams_are_ahead_of_a_newcomer() -> None:
    feed = make_feed()
    empty = feed.outlook()
    assert (empty.prefilling_tokens, empty.decodes, empty.context, empty.free_seats) == (0, 0, 0, 8)
    for number in range(2):
        feed.add(make_request(number, [3] * 50, 8), 0.0)
    feed.feed(0.0)
    inside = feed.outlook()
    assert (inside.prefilling_tokens, inside.decodes, inside.free_seats) == (100, 0, 6)
    assert inside.step_seconds > 0.0 == empty.step_seconds
    feed.apply([answer(0, 7)], 1.0)
    beside = feed.outlook()
    # The other one lacks a token at least, or it would have answered.
    assert (beside.prefilling_tokens, beside.decodes, beside.context) == (1, 1, 51)


def test_several_tokens_in_one_answer_are_several_iterations() -> None:
    truth = StepProfile(0.05, 0.002, 0.005, 0.0, 0.0, "this machine", 0.0)
    one_by_one, at_once = make_feed(), make_feed()
    converse(one_by_one, 200, truth)
    now = 0.0
    for number in range(200):
        prompt = 10 + number * 37 % 90
        at_once.add(make_request(number, [3] * prompt, 3, arrival=now), now)
        at_once.feed(now)
        now += 0.05 + 0.002 * prompt
        at_once.apply([answer(number, 7)], now)
        now += 2 * (0.05 + 0.005)
        at_once.apply([answer(number, 7, 7, finish=ExecutorFinish.LENGTH)], now)
    assert predict(at_once, 80) == pytest.approx(predict(one_by_one, 80), rel=0.1)


def test_who_waits_inside_has_taken_the_last_seat_and_goes_before_every_class() -> None:
    feed = make_feed(ONE_SEAT)
    for number in range(3):
        feed.add(make_request(number, [3] * 50, 8, priority=PriorityClass.BATCH), 0.0)
    feed.feed(0.0)
    outlook = feed.outlook()
    assert outlook.free_seats == 0
    assert outlook.waiting_requests == (2, 0, 0)


def test_who_would_only_wait_to_miss_a_deadline_is_refused() -> None:
    feed = make_feed(profile=StepProfile(1.0, 0.01, 0.01, 0.0, 0.0, "", 0.0))
    for number in range(8):
        feed.add(make_request(number, [3] * 100, 8), 0.0)
    feed.feed(0.0)
    late = make_request(99, [3] * 100, 8, ttft_deadline=2.0)
    with pytest.raises(OverloadedError, match="ttft_deadline"):
        feed.forecast.check(late, 100, feed.outlook(), 0.0)
    feed.forecast.check(make_request(98, [3] * 100, 8), 100, feed.outlook(), 0.0)


def test_who_waits_inside_for_blocks_is_not_believed_to_compute() -> None:
    """It used to count as computed beside the others, so that a prompt's tokens seemed to cost less the longer others waited."""
    truth = StepProfile(0.02, 0.001, 0.002, 0.0, 0.0, "this machine", 0.0)
    few = msgspec.structs.replace(LIMITS, block_count=256, max_num_tokens=1000)
    feed, now = make_feed(few), 0.0
    for number in range(100):
        feed.add(make_request(number, [3] * 600, 101, arrival=now), now)
    feed.feed(now)
    for number in range(97):
        now += truth.fixed + 600 * truth.per_new_token
        feed.apply([answer(number, 7)], now)
        waiting = feed.outlook()
        assert waiting.prefilling_tokens == 2 * 600
        now += truth.fixed + truth.per_decode
        feed.apply([answer(number, 7, finish=ExecutorFinish.END_ID)], now)
        feed.feed(now)
        feed.collect()
        feed.check_integrity()
    alone = make_feed(few)
    assert predict(feed, 1000, 999) - predict(alone, 1000) > 2 * 0.6
    feed.abort(FinishReason.CANCELLED, now)
    assert predict(feed, 500, 998) == pytest.approx(truth.fixed + 500 * truth.per_new_token, rel=0.1)


def test_answers_of_strangers_teach_nothing() -> None:
    feed = make_feed()
    before = predict(feed, 80)
    feed.apply([answer(5, 7)], 100.0)
    assert predict(feed, 80, 2) == before
    feed.check_integrity()
