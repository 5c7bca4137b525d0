"""The feed of an executor, against the simulated one: same outputs, same ends, bounded inside, nothing lost."""

from __future__ import annotations

import os
import random
from collections import defaultdict

import msgspec
import pytest

from engines.contract import ExecutorFinish, ExecutorLimits, ExecutorRequest, ExecutorResponse, Retention
from engines.simulated.clock import VirtualClock
from engines.simulated.executor import SimulatedExecutor
from engines.simulated.faults import Faults
from server.engine import (
    Event,
    FinishReason,
    GenerationRequest,
    PriorityClass,
    RequestFinished,
    SequenceFinished,
    TokensEvent,
)
from server.errors import DuplicateRequestError
from server.scheduling.executor_feed import ExecutorFeed
from tests.scheduling.world import BLOCK, LANGUAGE, alone, make_request, natural_end

WORLDS = int(os.environ.get("FIRSTTOKEN_TEST_WORLDS", "200"))
LIMITS = ExecutorLimits(
    vocab_size=500, block_size=BLOCK, block_count=32, max_batch_size=2, max_num_tokens=64, max_context=64
)


def make_feed(inner_queue: int = 1) -> ExecutorFeed:
    return ExecutorFeed(LIMITS, inner_queue=inner_queue)


def answer(request: int, *tokens: int, finish: ExecutorFinish | None = None, cached: int = 0) -> ExecutorResponse:
    return ExecutorResponse(request, tokens=tokens, finish=finish, final=finish is not None, cached_tokens=cached)


def ids(fed: list[ExecutorRequest]) -> list[int]:
    return [request.request for request in fed]


def finished(events: list[Event]) -> dict[int, RequestFinished]:
    return {event.request: event for event in events if isinstance(event, RequestFinished)}


def sequence_end(events: list[Event]) -> SequenceFinished:
    (end,) = [event for event in events if isinstance(event, SequenceFinished)]
    return end


def test_only_what_can_run_and_the_inner_queue_go_inside() -> None:
    feed = make_feed(inner_queue=2)
    for number in range(8):
        feed.add(make_request(number, [5] * 8), 0.0)
    assert ids(feed.feed(0.0)) == [0, 1, 2, 3]
    assert feed.feed(0.0) == []
    feed.apply([answer(0, 9, finish=ExecutorFinish.LENGTH)], 1.0)
    assert ids(feed.feed(1.0)) == [4]
    feed.check_integrity()


def test_the_worst_case_of_blocks_bounds_what_runs_case_C3() -> None:
    feed = ExecutorFeed(msgspec.structs.replace(LIMITS, max_batch_size=8), inner_queue=1)
    for number in range(3):
        feed.add(make_request(number, [5] * 40, 24), 0.0)
    # 64 tokens are 16 of 32 blocks: two run, one waits inside.
    assert ids(feed.feed(0.0)) == [0, 1, 2]
    assert feed.stats().blocks_in_use == 32
    feed.add(make_request(3, [5], 1), 0.0)
    assert feed.feed(0.0) == []
    feed.apply([answer(0, 9, finish=ExecutorFinish.LENGTH)], 1.0)
    assert ids(feed.feed(1.0)) == [3], "the third runs now, the fourth waits in its place"


def test_the_order_outside_decides_case_E1() -> None:
    feed = make_feed()
    for number, priority in enumerate((PriorityClass.BATCH, PriorityClass.STANDARD, PriorityClass.INTERACTIVE)):
        feed.add(make_request(number, [5], priority=priority), 0.0)
    fed = feed.feed(0.0)
    assert ids(fed) == [2, 1, 0]
    assert [request.priority for request in fed] == [1.0, 0.5, 0.0]


def test_an_answer_proves_that_a_request_runs_and_makes_room_in_the_inner_queue() -> None:
    feed = make_feed()
    for number in range(5):
        feed.add(make_request(number, [5]), 0.0)
    assert ids(feed.feed(0.0)) == [0, 1, 2]
    feed.apply([answer(2, 9)], 1.0)
    assert ids(feed.feed(1.0)) == [3]
    feed.check_integrity()


def test_a_cancel_outside_ends_at_once_and_one_inside_with_the_final_response_case_D1_D11() -> None:
    feed = make_feed()
    for number in range(4):
        feed.add(make_request(number, [5]), 0.0)
    feed.feed(0.0)
    feed.apply([answer(0, 9)], 0.5)
    feed.collect()
    feed.cancel(0)
    feed.cancel(3)
    feed.cancel(3, FinishReason.OVERLOADED)
    feed.cancel(77)
    assert feed.take_cancellations(1.0) == [0]
    assert feed.take_cancellations(1.0) == []
    events = feed.collect()
    assert events == [finished(events)[3]]
    assert finished(events)[3].reason is FinishReason.CANCELLED
    feed.apply([answer(0, 9, 9)], 1.5)
    assert feed.collect() == []
    feed.apply([answer(0, finish=ExecutorFinish.CANCELLED)], 2.0)
    events = feed.collect()
    assert sequence_end(events) == SequenceFinished(0, 0, FinishReason.CANCELLED, 1, 2)
    assert feed.stats().discarded_tokens == 2


def test_a_wish_that_came_before_the_executors_own_end_decides() -> None:
    feed = make_feed()
    feed.add(make_request(0, [5]), 0.0)
    feed.feed(0.0)
    feed.cancel(0)
    feed.apply([answer(0, 9, finish=ExecutorFinish.END_ID)], 1.0)
    assert sequence_end(feed.collect()) == SequenceFinished(0, 0, FinishReason.CANCELLED, 0, 1)


def test_stop_truncates_and_cancels_inside() -> None:
    feed = make_feed()
    feed.add(make_request(0, [5], 50), 0.0)
    feed.feed(0.0)
    feed.apply([answer(0, 9), answer(0, 9), answer(0, 9)], 1.0)
    feed.stop(0, 0, 2)
    assert feed.take_cancellations(1.0) == [0]
    feed.apply([answer(0, 9), answer(0, finish=ExecutorFinish.CANCELLED)], 2.0)
    assert sequence_end(feed.collect()) == SequenceFinished(0, 0, FinishReason.STOP_STRING, 2, 2)


def test_the_executor_is_told_what_is_left_of_the_deadline_and_which_adapter() -> None:
    feed = make_feed(inner_queue=3)
    feed.add(make_request(1, [5], deadline=10.0), 0.0)
    feed.add(make_request(2, [5], deadline=7.0001), 0.0)
    feed.add(msgspec.structs.replace(make_request(3, [5], ttft_deadline=9.0), adapter=2), 0.0)
    told = {request.request: (request.allotted_ms, request.adapter) for request in feed.feed(7.0)}
    assert told == {1: (3000, 0), 2: (1, 0), 3: (None, 2)}


def test_an_end_by_the_executors_own_clock_is_the_deadlines() -> None:
    feed = make_feed()
    feed.add(make_request(1, [5], deadline=10.0), 0.0)
    feed.feed(0.0)
    feed.apply([answer(1, 7), answer(1, finish=ExecutorFinish.TIMED_OUT)], 9.9999)
    assert sequence_end(feed.collect()).reason is FinishReason.DEADLINE


def test_deadlines_outside_and_inside_case_D2_E2_E3() -> None:
    feed = make_feed()
    for number in range(4):
        feed.add(make_request(number, [5], deadline=10.0, ttft_deadline=5.0 + number), 0.0)
    feed.feed(0.0)
    assert feed.next_expiry() == 5.0
    feed.apply([answer(0, 9)], 1.0)
    assert feed.next_expiry() == 6.0, "the first token is out: its deadline no longer counts"
    assert feed.take_cancellations(8.0) == [1, 2]
    assert finished(feed.collect())[3].reason is FinishReason.DEADLINE
    assert feed.take_cancellations(10.0) == [0]
    feed.apply([answer(n, finish=ExecutorFinish.CANCELLED) for n in range(3)], 11.0)
    assert {end.reason for end in finished(feed.collect()).values()} == {FinishReason.DEADLINE}
    assert feed.idle
    assert feed.next_expiry() is None


def test_warming_asks_for_one_token_and_throws_it_away() -> None:
    feed = make_feed()
    feed.add(make_request(0, [5] * 64, 0), 0.0)
    (request,) = feed.feed(0.0)
    assert (len(request.tokens), request.max_tokens) == (63, 1)
    feed.apply([answer(0, 9, finish=ExecutorFinish.LENGTH)], 1.0)
    assert sequence_end(feed.collect()) == SequenceFinished(0, 0, FinishReason.LENGTH, 0, 1)


def test_wishes_about_retention_reach_the_executor_as_they_are() -> None:
    feed = make_feed()
    wishes = (Retention(0, 4, 90, 1.5), Retention(4, None, 0))
    feed.add(msgspec.structs.replace(make_request(0, [5] * 8), retention=wishes), 0.0)
    (fed,) = feed.feed(0.0)
    assert fed.retention == wishes


def test_errors_end_the_request_they_name_and_no_other() -> None:
    feed = make_feed()
    for number in range(2):
        feed.add(make_request(number, [5]), 0.0)
    feed.feed(0.0)
    feed.apply([ExecutorResponse(0, final=True, error="out of luck")], 1.0)
    assert finished(feed.collect())[0].reason is FinishReason.ENGINE_FAILED
    feed.fail([1, 99], 1.0)
    assert finished(feed.collect())[1].reason is FinishReason.ENGINE_FAILED
    feed.apply([answer(1, 9, 9, finish=ExecutorFinish.LENGTH)], 2.0)
    assert feed.collect() == []
    assert feed.stats().discarded_tokens == 2
    feed.check_integrity()


def test_abort_ends_everyone_once() -> None:
    feed = make_feed()
    for number in range(6):
        feed.add(make_request(number, [5]), 0.0)
    feed.feed(0.0)
    feed.cancel(0)
    feed.abort(FinishReason.ENGINE_FAILED, 1.0)
    ends = finished(feed.collect())
    assert sorted(ends) == list(range(6))
    assert ends[0].reason is FinishReason.CANCELLED
    assert ends[1].reason is FinishReason.ENGINE_FAILED
    assert feed.idle
    feed.check_integrity()


def test_what_can_never_be_served_is_refused() -> None:
    with pytest.raises(ValueError, match=r"8 KV blocks.*max_context 64 tokens needs 16 blocks of 4"):
        ExecutorFeed(ExecutorLimits(500, BLOCK, 8, 2, 64, 64))
    with pytest.raises(ValueError, match="inner_queue must be at least 1, not 0"):
        make_feed(0)
    feed = make_feed()
    feed.add(make_request(0, [5]), 0.0)
    with pytest.raises(DuplicateRequestError, match="request 0 is alive"):
        feed.add(make_request(0, [5]), 0.0)


class ExecutorWorld:
    """One seed's feed and executor, and all that happens to them."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)  # noqa: S311 - a world must replay from its seed
        self.clock = VirtualClock()
        self.max_context = rng.choice((16, 40))
        needed = self.max_context // BLOCK
        self.executor = SimulatedExecutor(
            LANGUAGE,
            blocks=rng.choice((needed, 2 * needed, 5 * needed)),
            block_size=BLOCK,
            max_batch_size=rng.randint(1, 6),
            max_num_tokens=rng.choice((8, 64)),
            max_context=self.max_context,
            clock=self.clock,
            cancel_lag=rng.randint(0, 3),
            faults=Faults(),
            seed=seed,
        )
        self.feed = ExecutorFeed(self.executor.limits, inner_queue=rng.randint(1, 2))
        self.requests: dict[int, GenerationRequest] = {}
        self.wished: set[int] = set()
        self.output: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self.ends: dict[int, RequestFinished] = {}
        self.sequence_ends: dict[tuple[int, int], SequenceFinished] = {}
        self.left = rng.randint(1, 20)

    def disturb(self) -> None:
        rng, now = self.rng, self.clock.now()
        while self.left and rng.random() < 0.5:
            self.left -= 1
            length = rng.randint(1, self.max_context - 1)
            max_tokens = rng.randint(0, self.max_context - length)
            request = make_request(
                len(self.requests),
                [rng.randrange(3, 6) for _ in range(length)],
                max_tokens,
                n=rng.choice((1, 1, 3)) if max_tokens and self.has_room_for(3) else 1,
                temperature=rng.choice((0.0, 1.0)),
                priority=rng.choice(list(PriorityClass)),
                salt=rng.choice((b"", b"other")),
                arrival=now,
                deadline=now + rng.random() if rng.random() < 0.1 else None,
                ttft_deadline=now + rng.random() / 4 if rng.random() < 0.1 else None,
            )
            self.requests[request.id] = request
            self.feed.add(request, now)
        if self.requests and rng.random() < 0.1:
            victim = rng.choice(list(self.requests))
            self.wished.add(victim)
            index = rng.randrange(self.requests[victim].n)
            if rng.random() < 0.5 or not self.output[victim, index]:
                self.feed.cancel(victim)
            else:
                self.feed.stop(victim, index, rng.randint(1, len(self.output[victim, index])))

    def has_room_for(self, sequences: int) -> bool:
        """In the worst case: more the executor refuses, and validation before it."""
        limits = self.executor.limits
        return limits.max_batch_size >= sequences and limits.block_count * BLOCK >= sequences * self.max_context

    def run(self) -> None:
        for _ in range(5000):
            self.disturb()
            self.executor.enqueue(self.feed.feed(self.clock.now()))
            self.feed.check_integrity()
            for request in self.feed.take_cancellations(self.clock.now()):
                self.executor.cancel(request)
            self.feed.apply(self.executor.await_responses(0.05), self.clock.now())
            self.feed.check_integrity()
            self.executor.check_integrity()
            self.gather()
            if self.feed.idle and not self.left:
                return self.judge()
        raise AssertionError("not over")

    def gather(self) -> None:
        for event in self.feed.collect():
            assert event.request not in self.ends
            if isinstance(event, RequestFinished):
                self.ends[event.request] = event
            elif isinstance(event, SequenceFinished):
                assert (event.request, event.sequence) not in self.sequence_ends
                self.sequence_ends[event.request, event.sequence] = event
            elif isinstance(event, TokensEvent):
                key = (event.request, event.sequence)
                assert key not in self.sequence_ends
                assert event.first == (not self.output[key])
                self.output[key].extend(event.tokens)

    def judge(self) -> None:
        assert self.ends.keys() == self.requests.keys()
        for request in self.requests.values():
            for index in range(request.n):
                expected, output = alone(request, index=index), self.output[request.id, index]
                assert output == expected[: len(output)]
                if request.id not in self.wished and self.ends[request.id].reason is not FinishReason.DEADLINE:
                    assert output == expected
                    assert self.sequence_ends[request.id, index].reason is natural_end(request, expected)
        stats = self.feed.stats(self.executor.stats())
        assert (stats.running, stats.waiting_tokens, stats.blocks_in_use) == (0, 0, 0)
        assert stats.generated_tokens == sum(map(len, self.output.values()))
        assert self.feed.stats().blocks_in_use == 0


@pytest.mark.parametrize("group", range(10))
def test_random_worlds_end_each_request_once_with_what_it_says_alone_case_D8_D12(group: int) -> None:
    for seed in range(group, WORLDS, 10):
        try:
            ExecutorWorld(seed).run()
        except BaseException as error:
            error.add_note(f"executor world {seed}")
            raise
