"""The engine thread: one hand-over a step, first tokens before the next step, every request ended once whatever fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from engines.contract import StepHandle, StepPlan
from engines.simulated.cost import CostModel
from engines.simulated.faults import Faults
from server.engine import Event, FinishReason, RequestFinished, TokensEvent
from server.errors import OverloadedError, UnavailableError
from server.scheduling.admission import Admission
from tests.engine_loop.rig import Rig, alone, request

SLOW = CostModel(fixed=0.01)


def test_concurrent_requests_give_what_each_gives_alone() -> None:
    rig = Rig().start()
    asked = [request(i, [7, i % 5, i, 30 + i][: 2 + i % 3] * (1 + i % 4), max_tokens=3 + i) for i in range(32)]
    for one in asked:
        rig.engine.submit(one)
    rig.wait_end(*(one.id for one in asked))
    assert {one.id: rig.output[one.id] for one in asked} == {one.id: alone(one) for one in asked}
    rig.engine.close(60)
    assert rig.engine.stats().blocks_in_use == 0
    assert rig.threads == {"engine"}


def test_one_hand_over_a_step_whatever_the_batch() -> None:
    rig = Rig(cost=SLOW).start()
    asked = [request(i, [3, 4, i], max_tokens=12) for i in range(16)]
    for one in asked:
        rig.engine.submit(one)
    rig.wait_end(*(one.id for one in asked))
    rig.engine.close(60)
    with_tokens = [batch for batch in rig.batches if any(isinstance(event, TokensEvent) for event in batch)]
    assert len(with_tokens) <= rig.engine.stats().steps
    assert max(len(batch) for batch in with_tokens) >= 16


def test_first_tokens_lead_their_batch() -> None:
    rig = Rig(cost=SLOW).start()
    for i in range(8):
        rig.engine.submit(request(i, [5, i], max_tokens=6))
        time.sleep(0.012)
    rig.wait_end(*range(8))
    rig.engine.close(60)
    for batch in rig.batches:
        firsts = [event.first for event in batch if isinstance(event, TokensEvent)]
        assert firsts == sorted(firsts, reverse=True)


def test_first_tokens_are_handed_over_before_the_next_step_starts() -> None:
    rig = Rig(cost=SLOW)
    order: list[str] = []
    start, deliver = rig.runner.start, rig.deliver

    def watched_start(plan: StepPlan) -> StepHandle:
        order.append("start")
        return start(plan)

    def watched_deliver(events: list[Event]) -> None:
        order.extend("first" for event in events if isinstance(event, TokensEvent) and event.first)
        deliver(events)

    rig.runner.start = watched_start  # type: ignore[method-assign]
    rig.engine.start(watched_deliver)
    rig.engine.submit(request(1, [9, 9], max_tokens=4))
    rig.wait_end(1)
    rig.engine.close(60)
    assert order[:3] == ["start", "first", "start"]


@pytest.mark.parametrize("moment", [0.0, 0.015, 0.05])
def test_case_d1_cancel_ends_once_and_frees_the_seat(moment: float) -> None:
    rig = Rig(cost=SLOW).start()
    rig.engine.submit(request(1, range(3, 40), max_tokens=80))
    time.sleep(moment)
    rig.engine.cancel(1)
    rig.engine.cancel(1)
    rig.wait_end(1)
    assert [end.reason for end in rig.ends[1]] == [FinishReason.CANCELLED]
    steps = rig.engine.stats().steps
    rig.engine.submit(request(2, [8, 8], max_tokens=3))
    rig.wait_end(2)
    rig.engine.close(60)
    assert rig.output[2] == alone(request(2, [8, 8], max_tokens=3))
    assert rig.engine.stats().steps <= steps + 4
    assert rig.engine.stats().running == 0


def test_case_e3_a_deadline_wakes_an_idle_wait_by_timer() -> None:
    rig = Rig(cost=SLOW).start()
    rig.engine.submit(request(1, [4, 4], max_tokens=100, deadline=time.monotonic() + 0.5))
    rig.wait_end(1)
    rig.engine.close(60)
    assert rig.ends[1][0].reason is FinishReason.DEADLINE
    assert 0 < len(rig.output[1]) < 100


def test_stop_cuts_at_the_token_and_counts_the_rest_as_discarded() -> None:
    rig = Rig(cost=SLOW).start()
    rig.engine.submit(request(1, [6, 6], max_tokens=100))
    rig.wait_tokens(1, 5)
    rig.engine.stop(1, 0, 3)
    rig.wait_end(1)
    rig.engine.close(60)
    (end,) = rig.sequence_ends[1]
    assert (end.reason, end.completion_tokens) == (FinishReason.STOP_STRING, 3)
    assert end.completion_tokens + end.discarded_tokens >= 5


def test_a_failed_step_ends_its_requests_and_no_others() -> None:
    faults = Faults(fail_steps=[3])
    rig = Rig(cost=SLOW, faults=faults).start()
    rig.engine.submit(request(1, [5, 6], max_tokens=50))
    rig.wait_end(1)
    assert rig.ends[1][0].reason is FinishReason.ENGINE_FAILED
    later = request(2, [5, 6, 7], max_tokens=5)
    rig.engine.submit(later)
    rig.wait_end(2)
    assert rig.engine.stats().alive
    assert rig.output[2] == alone(later)
    rig.engine.close(60)
    rig.batcher.check_integrity()


def test_steps_that_keep_failing_are_death() -> None:
    rig = Rig(faults=Faults(fail_steps=range(1, 50))).start()
    for number in range(3):
        rig.engine.submit(request(number, [5, number], max_tokens=5))
        rig.wait_end(number)
    _wait_until(lambda: not rig.engine.stats().alive)
    with pytest.raises(UnavailableError):
        rig.engine.submit(request(9, [5], max_tokens=5))


def test_case_b7_death_ends_every_request_once() -> None:
    rig = Rig(cost=SLOW, faults=Faults(die_at=4)).start()
    for number in range(12):
        rig.engine.submit(request(number, [5, number], max_tokens=60))
    rig.wait_end(*range(12))
    assert {end.reason for ends in rig.ends.values() for end in ends} == {FinishReason.ENGINE_FAILED}
    assert all(len(ends) == 1 for ends in rig.ends.values())
    assert not rig.engine.stats().alive
    with pytest.raises(UnavailableError, match="died"):
        rig.engine.submit(request(99, [5], max_tokens=5))


def test_a_fault_of_our_own_is_death_too_and_nobody_waits_for_ever() -> None:
    rig = Rig(cost=SLOW)

    def broken() -> None:
        raise RuntimeError("a bug in the scheduler")

    rig.batcher.draft = broken  # type: ignore[method-assign]
    rig.start()
    rig.engine.submit(request(1, [5], max_tokens=5))
    rig.wait_end(1)
    assert rig.ends[1][0].reason is FinishReason.ENGINE_FAILED
    assert not rig.engine.stats().alive


def test_close_ends_what_runs_and_what_waits() -> None:
    rig = Rig(cost=SLOW).start()
    for number in range(100):
        rig.engine.submit(request(number, [5, number % 7], max_tokens=100))
    rig.wait_tokens(0, 2)
    rig.engine.close(60)
    assert {end.reason for ends in rig.ends.values() for end in ends} == {FinishReason.CANCELLED}
    assert sorted(number for number, ends in rig.ends.items() if len(ends) == 1) == list(range(100))
    with pytest.raises(UnavailableError, match="shutting down"):
        rig.engine.submit(request(100, [5]))
    rig.engine.close(60)


def test_close_before_start_frees_the_runner() -> None:
    others, rig = set(threading.enumerate()), Rig()
    rig.engine.close(1)
    assert not any(thread.name == "engine" for thread in set(threading.enumerate()) - others)


def test_case_e8_a_full_house_refuses_with_a_delay() -> None:
    rig = Rig(cost=SLOW, admission=Admission(max_waiting_requests=4, max_waiting_tokens=10_000))
    for number in range(4):  # the loop is not started: nothing is taken from the inbox
        rig.engine.submit(request(number, [5]))
    with pytest.raises(OverloadedError, match="4 requests wait, the limit is 4") as refused:
        rig.engine.submit(request(4, [5]))
    assert refused.value.retry_after > 0
    with pytest.raises(OverloadedError, match="4 requests wait, the limit is 4"):
        rig.engine.require_room("default")
    rig.start()
    rig.wait_end(*range(4))
    rig.engine.require_room("default")
    rig.engine.submit(request(5, [5]))
    rig.wait_end(5)
    rig.engine.close(60)


def test_an_idle_engine_beats_and_a_running_step_has_an_age() -> None:
    rig = Rig(cost=CostModel(fixed=0.3))
    assert rig.engine.stats().last_step_age is None
    rig.start()
    _wait_until(lambda: rig.engine.stats().last_step_age is not None)
    rig.engine.submit(request(1, [5], max_tokens=50))
    _wait_until(lambda: (rig.engine.stats().step_running_for or 0.0) > 0.05)
    rig.engine.cancel(1)
    rig.wait_end(1)
    rig.engine.close(60)
    assert rig.engine.stats().step_running_for is None


def test_requests_in_one_batch_end_with_request_finished_last() -> None:
    rig = Rig().start()
    for number in range(10):
        rig.engine.submit(request(number, [number, 3], max_tokens=4))
    rig.wait_end(*range(10))
    rig.engine.close(60)
    flat = [event for batch in rig.batches for event in batch]
    for number in range(10):
        own = [event for event in flat if event.request == number]
        assert isinstance(own[-1], RequestFinished)
        assert sum(isinstance(event, RequestFinished) for event in own) == 1


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)
