"""What the simulated executor adds to the contract: virtual time, faults, books that balance, and its twin's tokens."""

from __future__ import annotations

import random
from array import array

import pytest

from engines.contract import EngineDeadError, ExecutorFinish, ExecutorRequest, ExecutorResponse, PlanError
from engines.sampling.params import SamplingParams
from engines.simulated.clock import RealClock, VirtualClock
from engines.simulated.cost import CostModel
from engines.simulated.executor import SimulatedExecutor
from engines.simulated.faults import Faults
from engines.simulated.language import Language
from tests.simulated.rig import greedy, make_row, make_runner, make_spec, run

LANGUAGE = Language(300, end_ids=(2,), end_rate=0.03, seed=3)
PROMPT = list(range(30, 47))


def make_executor(
    *, clock: VirtualClock | None = None, faults: Faults | None = None, cancel_lag: int = 1, noise: float = 0.0
) -> SimulatedExecutor:
    return SimulatedExecutor(
        LANGUAGE,
        blocks=40,
        block_size=4,
        max_batch_size=4,
        max_num_tokens=16,
        max_context=128,
        cost=CostModel(fixed=1.0, per_new_token=0.1, noise=noise),
        clock=clock or VirtualClock(),
        faults=faults,
        cancel_lag=cancel_lag,
    )


def make_request(number: int, prompt: list[int], max_tokens: int, *, n: int = 1) -> ExecutorRequest:
    return ExecutorRequest(
        request=number,
        tokens=array("i", prompt),
        max_tokens=max_tokens,
        sampling=SamplingParams(),
        end_ids=(2,),
        n=n,
    )


def drain(executor: SimulatedExecutor) -> list[ExecutorResponse]:
    """Until it is idle, with its books checked after every answer."""
    responses: list[ExecutorResponse] = []
    while got := executor.await_responses(1000.0):
        executor.check_integrity()
        responses += got
    return responses


def test_the_twins_say_the_same() -> None:
    executor = make_executor()
    executor.enqueue([make_request(1, PROMPT, 30)])
    said = [token for response in drain(executor) for token in response.tokens]
    expected = greedy(PROMPT, 30, LANGUAGE)
    assert said == (expected[: expected.index(2) + 1] if 2 in expected else expected)
    runner = make_runner(language=LANGUAGE)
    (output,) = run(runner, 1, make_row(1, PROMPT, 0, range(8)), opened=[make_spec(1, PROMPT)])
    assert list(output.tokens) == said[:1]


def test_virtual_time_is_the_cost_of_the_iterations() -> None:
    """17 prompt tokens under a budget of 16: two iterations of prefill, the second with the first token."""
    clock = VirtualClock()
    executor = make_executor(clock=clock)
    executor.enqueue([make_request(1, PROMPT, 2)])
    assert executor.await_responses(1000.0)[0].tokens
    assert clock.now() == pytest.approx(2 * 1.0 + 17 * 0.1)
    executor.await_responses(1000.0)
    assert clock.now() == pytest.approx(3 * 1.0 + 17 * 0.1)


def test_a_timeout_shorter_than_an_iteration_leaves_it_running() -> None:
    clock = VirtualClock()
    executor = make_executor(clock=clock)
    executor.enqueue([make_request(1, [5], 1)])
    assert executor.await_responses(0.5) == []
    assert clock.now() == 0.5
    assert executor.await_responses(0.25) == []
    (response,) = executor.await_responses(10.0)
    assert response.final
    assert clock.now() == pytest.approx(1.1)


def test_runs_are_the_same_every_time() -> None:
    def play(seed: int) -> tuple[list[ExecutorResponse], float]:
        draw = random.Random(seed)  # noqa: S311 - the same worlds every run
        clock = VirtualClock()
        executor = make_executor(clock=clock, noise=0.2)
        responses = []
        for number in range(25):
            prompt = [draw.randrange(3, 6) for _ in range(draw.randint(1, 40))]
            executor.enqueue([make_request(number, prompt, draw.randint(1, 30), n=draw.randint(1, 2))])
            responses += executor.await_responses(draw.random() * 3)
            if draw.random() < 0.3:
                executor.cancel(draw.randrange(number + 1))
            executor.check_integrity()
        return responses + drain(executor), clock.now()

    for seed in range(20):
        responses, end = play(seed)
        assert play(seed) == (responses, end)
        finals = [response.request for response in responses if response.final]
        assert sorted(finals) == list(range(25))


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_late_tokens_are_as_many_as_the_lag(lag: int) -> None:
    executor = make_executor(cancel_lag=lag)
    executor.enqueue([make_request(1, PROMPT, 60, n=1)])
    before = executor.await_responses(1000.0)
    assert executor.await_responses(0.5) == []
    executor.cancel(1)
    after = drain(executor)
    assert len(before) == 1
    # One token of the iteration that ran when the cancel came, then the lag's.
    assert sum(len(response.tokens) for response in after) == 1 + lag
    assert after[-1].finish is ExecutorFinish.CANCELLED


def test_the_cancelled_prefix_stays_cached_case_D7() -> None:
    executor = make_executor()
    executor.enqueue([make_request(1, PROMPT, 60)])
    executor.await_responses(1000.0)
    executor.cancel(1)
    drain(executor)
    executor.enqueue([make_request(2, PROMPT, 1)])
    (response,) = drain(executor)
    assert response.cached_tokens == 16


def test_a_failed_iteration_fails_what_ran_and_serves_the_rest() -> None:
    executor = make_executor(faults=Faults(fail_steps=[3]))
    executor.enqueue([make_request(number, PROMPT[:4], 20) for number in range(6)])
    responses = drain(executor)
    errors = [response.request for response in responses if response.error]
    assert errors == [0, 1, 2, 3]
    assert sorted(response.request for response in responses if response.final and not response.error) == [4, 5]
    assert executor.stats().used_blocks == 0


def test_one_request_can_be_failed() -> None:
    executor = make_executor(faults=Faults(fail_requests={2: "out of cheese"}))
    executor.enqueue([make_request(1, PROMPT, 3), make_request(2, PROMPT, 3)])
    responses = drain(executor)
    (error,) = [response for response in responses if response.error]
    assert (error.request, error.error, error.final, error.finish) == (2, "out of cheese", True, None)


def test_a_dead_executor_hands_out_what_it_had_and_then_raises() -> None:
    executor = make_executor(faults=Faults(die_at=4))
    executor.enqueue([make_request(1, [5], 20)])
    tokens = [executor.await_responses(1000.0)[0].tokens for _ in range(3)]
    assert len(tokens) == 3
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="killed by a fault"):
            executor.await_responses(1000.0)
    with pytest.raises(EngineDeadError):
        executor.enqueue([make_request(2, [5], 1)])


@pytest.mark.parametrize("real", [False, True])
def test_a_hanging_executor_answers_nothing_until_it_is_closed(real: bool) -> None:
    executor = SimulatedExecutor(
        LANGUAGE, blocks=40, clock=RealClock() if real else VirtualClock(), faults=Faults(hang_at=2)
    )
    executor.enqueue([make_request(1, [5], 20)])
    assert len(executor.await_responses(10.0)) == 1
    assert executor.await_responses(0.05) == []
    assert executor.stats().iterations == 2
    executor.close()
    with pytest.raises(EngineDeadError):
        executor.await_responses(10.0)


def test_a_budget_below_the_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="max_num_tokens: must be at least max_batch_size"):
        SimulatedExecutor(LANGUAGE, blocks=40, max_batch_size=64, max_num_tokens=63)


def test_a_request_that_could_never_run_is_refused() -> None:
    with pytest.raises(PlanError, match="needs up to 64 blocks, the executor has 40"):
        make_executor().enqueue([make_request(1, PROMPT, 47, n=4)])
