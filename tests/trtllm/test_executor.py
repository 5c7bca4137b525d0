"""The adapter beyond the contract's own suite: overtaking responses, refusals, death, and the time for which calls hold everybody up."""

from __future__ import annotations

import threading
import time
from array import array
from datetime import timedelta
from typing import Any

import pytest

from engines.contract import (
    EngineDeadError,
    ExecutorFinish,
    ExecutorLimits,
    ExecutorRequest,
    PlanError,
    RequestExecutor,
)
from engines.sampling.params import SamplingParams
from engines.simulated.faults import Faults
from engines.trtllm.executor import TrtllmExecutor
from tests.conformance.executor_cases import Client, make_text
from tests.trtllm.fake_engine import FIRST_ID
from tests.trtllm.fake_site.tensorrt_llm.bindings import executor as fake
from tests.trtllm.rig import fake_executor
from tests.trtllm.test_responses import response

LIMITS = ExecutorLimits(
    vocab_size=300, block_size=8, block_count=64, max_batch_size=8, max_num_tokens=64, max_context=256
)


def asked(number: int = 7) -> ExecutorRequest:
    return ExecutorRequest(
        request=number, tokens=array("i", [1, 2, 3]), max_tokens=5, sampling=SamplingParams(), end_ids=()
    )


class ScriptedNative:
    """Answers as it is told; ``entered`` and ``go`` hold enqueue_requests() up in the middle."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.cancelled: list[int] = []
        self.refuses: Exception | None = None
        self.alive = True
        self.iterates = False
        self.events: Any | None = None
        self.entered, self.go = threading.Event(), threading.Event()
        self.go.set()

    def enqueue_requests(self, requests: list[Any]) -> list[int]:
        self.entered.set()
        self.go.wait(60)
        if self.refuses is not None:
            raise self.refuses
        return [FIRST_ID + at for at in range(len(requests))]

    def await_responses(self, timeout: timedelta) -> list[Any]:
        if not self.answers:
            time.sleep(min(0.01, timeout.total_seconds()))
        answers, self.answers = self.answers, []
        return answers

    def cancel_request(self, id: int) -> None:  # noqa: A002 - the library's name
        self.cancelled.append(id)

    def get_latest_iteration_stats(self) -> list[Any]:
        return [fake.IterationStats(iter=1, num_queued_requests=0, kv_cache_stats=None)] if self.iterates else []

    def get_kv_cache_event_manager(self) -> Any | None:
        return self.events

    def can_enqueue_requests(self) -> bool:
        return self.alive

    def shutdown(self) -> None:
        self.alive = False


def scripted() -> tuple[ScriptedNative, TrtllmExecutor]:
    native = ScriptedNative()
    return native, TrtllmExecutor(fake, native, LIMITS)


def test_a_response_may_overtake_the_call_that_asked_for_it() -> None:
    native, executor = scripted()
    native.go.clear()
    enqueuing = threading.Thread(target=executor.enqueue, args=([asked()],), daemon=True)
    enqueuing.start()
    assert native.entered.wait(60)
    native.answers = [response([5])]
    (said,) = executor.await_responses(1.0)
    assert (said.request, said.tokens) == (7, (5,))
    executor.cancel(7)
    assert native.cancelled == []
    native.answers = [response([6], "LENGTH")]
    assert executor.await_responses(1.0)[-1].final
    native.go.set()
    enqueuing.join(60)
    assert native.cancelled == [], "the request had ended before its id was known"
    executor.check_integrity()


def test_a_cancel_before_the_id_is_known_is_made_up_for() -> None:
    native, executor = scripted()
    native.go.clear()
    enqueuing = threading.Thread(target=executor.enqueue, args=([asked()],), daemon=True)
    enqueuing.start()
    assert native.entered.wait(60)
    executor.cancel(7)
    executor.cancel(7)
    native.go.set()
    enqueuing.join(60)
    assert native.cancelled == [FIRST_ID]


def test_words_after_the_final_one_are_dropped_case_d4() -> None:
    native, executor = scripted()
    executor.enqueue([asked()])
    native.answers = [response([5], "LENGTH"), response([6]), response([], "CANCELLED")]
    assert [said.tokens for said in executor.await_responses(1.0)] == [(5,)]


def test_a_refusal_by_the_library_is_that_requests_matter_alone_case_m6() -> None:
    native, executor = scripted()
    native.refuses = RuntimeError("Assertion failed: bad stop words\nat executor.cpp:1")
    with pytest.raises(PlanError, match=r"request 7: TensorRT-LLM refuses it.*bad stop words"):
        executor.enqueue([asked()])
    native.refuses = None
    executor.enqueue([asked()])
    assert executor.stats().active == 1


def test_a_refusal_by_a_dead_library_is_death() -> None:
    native, executor = scripted()
    native.refuses, native.alive = RuntimeError("LLM is shutting down"), False
    with pytest.raises(EngineDeadError, match="takes nothing any more"):
        executor.enqueue([asked()])
    with pytest.raises(EngineDeadError):
        executor.await_responses(0.1)


def test_calls_that_hold_everybody_up_are_few_and_counted() -> None:
    """One call for a whole batch, none for each token."""
    executor = fake_executor(64, 8, statistics_age=3600.0)
    client = Client(executor)
    before = executor.stats().calls
    client.run(*(client.request(make_text(seed, 5), 20) for seed in range(8)))
    stats = executor.stats()
    assert stats.calls - before == 1
    assert stats.call_seconds > 0
    executor.close()


def test_the_librarys_own_error_ends_one_request_case_b7() -> None:
    executor: RequestExecutor = fake_executor(
        64, 8, habits={"fail_requests": {FIRST_ID + 1: "[TensorRT-LLM][ERROR] something in this request"}}
    )
    client = Client(executor)
    failing, fine = client.request(make_text(1, 5), 5), client.request(make_text(2, 5), 5)
    failed, served = client.run(failing, fine)
    assert failed.responses[-1].error == "[TensorRT-LLM][ERROR] something in this request"
    assert served.finish() is ExecutorFinish.LENGTH
    executor.close()


def test_death_amid_streams_is_told_to_everybody() -> None:
    executor = fake_executor(64, 8, faults=Faults(die_at=6))
    client = Client(executor)
    executor.enqueue([client.request(make_text(seed, 5), 100) for seed in range(4)])
    with pytest.raises(EngineDeadError, match="killed by a fault"):
        client.until(lambda: False)
    for call in (lambda: executor.cancel(1), lambda: executor.await_responses(0.1)):
        with pytest.raises(EngineDeadError):
            call()
    executor.close()


def test_a_hang_inside_the_library_is_noticed_though_its_waits_end_case_k2_b8() -> None:
    native = ScriptedNative()
    executor = TrtllmExecutor(fake, native, LIMITS, stall_after=0.05)
    time.sleep(0.1)
    assert executor.await_responses(0.1) == [], "idle is no hang"
    executor.enqueue([asked()])
    native.iterates = True
    time.sleep(0.1)
    assert executor.await_responses(0.1) == [], "a long prompt gives iterations and no response"
    native.iterates = False
    time.sleep(0.1)
    with pytest.raises(
        EngineDeadError, match=r"no response and no iteration for 0\.05 s with 1 requests inside: a rank hangs"
    ):
        executor.await_responses(1.0)
