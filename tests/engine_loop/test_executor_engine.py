"""The two threads around a request executor: fed just enough, cancelled at once, ended once whatever fails."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import msgspec
import pytest

from engines.contract import RequestExecutor
from engines.simulated.clock import RealClock
from engines.simulated.cost import CostModel
from engines.simulated.executor import SimulatedExecutor
from engines.simulated.faults import Faults
from engines.trtllm.executor import TrtllmExecutor
from server.engine import EngineInfo, Event, FinishReason, GenerationRequest, RequestFinished, TokensEvent
from server.errors import UnavailableError
from server.executor_loop import ExecutorEngine
from server.scheduling.admission import Admission
from server.scheduling.executor_feed import ExecutorFeed
from server.watchdog import PERIOD, EngineWatchdog
from tests.engine_loop.rig import BLOCK, LANGUAGE, alone
from tests.engine_loop.rig import request as asked_for
from tests.trtllm.engines import FACTS
from tests.trtllm.rig import fake_executor

SLOW = CostModel(fixed=0.01)


def _simulated(cost: CostModel, faults: Faults | None, batch: int) -> RequestExecutor:
    return SimulatedExecutor(
        LANGUAGE,
        blocks=256,
        block_size=BLOCK,
        max_batch_size=batch,
        max_num_tokens=256,
        max_context=128,
        cost=cost,
        clock=RealClock(),
        faults=faults,
    )


def _trtllm(cost: CostModel, faults: Faults | None, batch: int) -> RequestExecutor:
    """The TensorRT-LLM adapter over the contract fake, which speaks the same language."""
    facts = msgspec.structs.replace(FACTS, tokens_per_block=BLOCK, max_seq_len=128)
    habits = {"seed": 3, "end_rate": 0.0, "fixed": cost.fixed, "per_new_token": cost.per_new_token}
    return fake_executor(256, batch, habits=habits, faults=faults, facts=facts, vocab_size=500)


EXECUTORS = {"simulated": _simulated, "trtllm-over-contract-fake": _trtllm}


class ExecutorRig:
    def __init__(self, kind: str, *, cost: CostModel = SLOW, faults: Faults | None = None, batch: int = 8) -> None:
        self.executor = EXECUTORS[kind](cost, faults, batch)
        self.feed = ExecutorFeed(self.executor.limits)
        limits = self.executor.limits
        info = EngineInfo(
            kind="simulated-executor",
            model="rig",
            fingerprint="rig",
            vocab_size=limits.vocab_size,
            end_ids=(2,),
            max_context=limits.max_context,
            block_size=limits.block_size,
            block_count=limits.block_count,
            bytes_per_block=0,
            max_sequences=limits.max_batch_size,
            max_step_tokens=limits.max_num_tokens,
            capabilities=self.executor.capabilities,
        )
        admission = Admission(max_waiting_requests=1000, max_waiting_tokens=100_000)
        self.engine = ExecutorEngine(self.executor, self.feed, admission, info)
        self.output: defaultdict[int, list[int]] = defaultdict(list)
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self.engine.start(self._deliver)

    def _deliver(self, events: list[Event]) -> None:
        with self._changed:
            self.events.extend(events)
            for event in events:
                if isinstance(event, TokensEvent):
                    self.output[event.request].extend(event.tokens)
            self._changed.notify_all()

    def ends(self) -> dict[int, list[FinishReason]]:
        ends: defaultdict[int, list[FinishReason]] = defaultdict(list)
        for event in list(self.events):
            if isinstance(event, RequestFinished):
                ends[event.request].append(event.reason)
        return ends

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        with self._changed:
            while not condition():
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Where no event tells of it."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def wait_ends(self, count: int) -> None:
        self.wait(lambda: len(self.ends()) >= count)

    def submit(self, *asked: GenerationRequest) -> None:
        for one in asked:
            self.engine.submit(one)


@pytest.fixture(params=EXECUTORS)
def rigs(request: pytest.FixtureRequest) -> Iterator[Callable[..., ExecutorRig]]:
    made: list[ExecutorRig] = []

    def make(*, cost: CostModel = SLOW, faults: Faults | None = None, batch: int = 8) -> ExecutorRig:
        made.append(ExecutorRig(request.param, cost=cost, faults=faults, batch=batch))
        return made[-1]

    yield make
    for rig in made:
        rig.engine.close(60)


def test_concurrent_requests_give_what_each_gives_alone(rigs: Callable[..., ExecutorRig]) -> None:
    rig = rigs(cost=CostModel())
    asked = [asked_for(i, [7, i % 5, i], max_tokens=3 + i) for i in range(64)]
    rig.submit(*asked)
    rig.wait_ends(64)
    assert {one.id: rig.output[one.id] for one in asked} == {one.id: alone(one) for one in asked}
    assert all(len(ends) == 1 for ends in rig.ends().values())


def test_the_executors_own_queue_stays_short(rigs: Callable[..., ExecutorRig]) -> None:
    rig = rigs(batch=2)
    rig.submit(*(asked_for(i, [5, i], max_tokens=20) for i in range(20)))
    deepest = 0
    while len(rig.ends()) < 20:
        stats = rig.executor.stats()
        deepest = max(
            deepest, stats.queued + stats.active
        )  # what is fed is queued until the next iteration takes it up
        time.sleep(0.002)
    assert deepest <= 2 + 2


@pytest.mark.parametrize("moment", [0.0, 0.03])
def test_case_d12_cancel_in_every_state_ends_once(rigs: Callable[..., ExecutorRig], moment: float) -> None:
    rig = rigs(batch=2)
    rig.submit(*(asked_for(i, [5, i], max_tokens=100) for i in range(10)))
    time.sleep(moment)
    for number in range(10):
        rig.engine.cancel(number)
    rig.wait_ends(10)
    assert {reason for ends in rig.ends().values() for reason in ends} == {FinishReason.CANCELLED}
    assert all(len(ends) == 1 for ends in rig.ends().values())
    later = asked_for(99, [4, 4], max_tokens=4)
    rig.submit(later)
    rig.wait_ends(11)
    assert rig.output[99] == alone(later)


def test_a_deadline_ends_what_waits_outside(rigs: Callable[..., ExecutorRig]) -> None:
    rig = rigs(batch=1)
    rig.submit(*(asked_for(i, [5, i], max_tokens=100) for i in range(4)))
    rig.submit(asked_for(9, [5, 9], max_tokens=100, deadline=time.monotonic() + 0.1))
    rig.wait(lambda: 9 in rig.ends())
    assert rig.ends()[9] == [FinishReason.DEADLINE]
    assert not rig.output[9]


def test_case_b7_death_ends_every_request_once(rigs: Callable[..., ExecutorRig]) -> None:
    rig = rigs(faults=Faults(die_at=5))
    rig.submit(*(asked_for(i, [5, i], max_tokens=100) for i in range(20)))
    rig.wait_ends(20)
    assert {reason for ends in rig.ends().values() for reason in ends} == {FinishReason.ENGINE_FAILED}
    assert all(len(ends) == 1 for ends in rig.ends().values())
    assert not rig.engine.stats().alive
    with pytest.raises(UnavailableError):
        rig.submit(asked_for(50, [5]))


def test_close_under_load_ends_all(rigs: Callable[..., ExecutorRig]) -> None:
    others = set(threading.enumerate())
    rig = rigs()
    rig.submit(*(asked_for(i, [5, i % 7], max_tokens=100) for i in range(40)))
    rig.wait(lambda: len(rig.output) > 2)
    rig.engine.close(60)
    assert {reason for ends in rig.ends().values() for reason in ends} == {FinishReason.CANCELLED}
    assert len(rig.ends()) == 40
    names = {thread.name for thread in set(threading.enumerate()) - others}
    assert not names & {"engine", "engine-feed"}


def test_calls_that_hold_up_every_thread_are_counted_where_the_library_has_them(
    rigs: Callable[..., ExecutorRig],
) -> None:
    rig = rigs()
    rig.submit(*(asked_for(i, [5, i], max_tokens=5) for i in range(4)))
    rig.wait_ends(4)
    stats = rig.engine.stats()
    assert (stats.held_calls > 0) == (stats.held_seconds > 0) == isinstance(rig.executor, TrtllmExecutor)


def test_its_steps_are_the_executors_iterations(rigs: Callable[..., ExecutorRig]) -> None:
    """Eight tokens of one request take eight iterations, in however many batches their responses come."""
    rig = rigs()
    before = rig.executor.stats().iterations
    rig.submit(asked_for(1, [5, 6], max_tokens=8))
    rig.wait_ends(1)
    rig.wait_for(lambda: rig.engine.stats().steps == rig.executor.stats().iterations >= before + 8)


def test_an_executor_that_stands_still_with_requests_inside_shows_no_life_case_K2() -> None:
    """Calls that come back empty say only that our own thread is alive; an idle executor, though, beats."""
    faults = Faults()
    rig = ExecutorRig("simulated", faults=faults)
    watchdog = EngineWatchdog(rig.engine, stuck_after=1.0)
    rig.wait_for(lambda: rig.engine.stats().last_step_age is not None)
    idle_since = time.monotonic()
    while time.monotonic() < idle_since + 1.5:
        assert watchdog.look() is None
        time.sleep(PERIOD)
    rig.submit(asked_for(1, [5, 6], max_tokens=100))
    rig.wait(lambda: len(rig.output[1]) > 1)
    faults.hang()
    rig.wait_for(lambda: "stuck" in (watchdog.look() or ""))
    rig.engine.close(60)
    assert len(rig.ends()[1]) == 1
