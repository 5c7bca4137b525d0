"""What the conformance suite cannot see: the library's failures, the runner's ends, and exactly which position is drawn from."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from engines.contract import EngineDeadError, PlanError, Sample, Score, StepError
from engines.openvino.runner import OpenVinoStepRunner
from engines.sampling.params import SamplingParams
from tests.openvino.tiny_engine import Steps, row, spec, tiny_runner, tokens


@pytest.fixture
def runner() -> Iterator[OpenVinoStepRunner]:
    made = tiny_runner()
    yield made
    made.close()


def test_several_draws_in_one_step_are_those_of_single_steps(runner: OpenVinoStepRunner) -> None:
    """Each position of a verified draft is drawn by its own number: the draws do not depend on how many are made at once."""
    how = SamplingParams(temperature=1.5, seed=77, logprobs=2)
    steps, text = Steps(runner), tokens(40)
    at_once = steps.run(row(1, text, 0, [0, 1], Sample(9)), opened=[spec(1, how)]).outputs[0]
    steps.run(row(2, text[:31], 0, [2, 3], None), opened=[spec(2, how)])
    single = [steps.run(row(2, [text[past]], past, [2, 3])).outputs[0] for past in range(31, 40)]
    assert at_once.tokens == tuple(output.tokens[0] for output in single)
    assert at_once.logprobs == pytest.approx([output.logprobs[0] for output in single], abs=1e-4)
    assert [[token for token, _ in top] for top in at_once.top] == [
        [token for token, _ in output.top[0]] for output in single
    ]
    assert len(set(at_once.tokens)) > 3


def test_scores_and_draws_share_a_step(runner: OpenVinoStepRunner) -> None:
    steps, text = Steps(runner), tokens(20)
    alone = steps.run(row(1, text, 0, [0]), opened=[spec(1)]).outputs[0]
    scored = steps.run(row(2, text[:19], 0, [1], Score(text[1:20], top=1)), opened=[spec(2)]).outputs[0]
    mixed = steps.run(
        row(3, text[:19], 0, [2], Score(text[1:20], top=1)),
        row(4, text, 0, [3]),
        row(5, text, 0, [4], None),
        row(6, text[:19], 0, [5], Score(text[1:20], top=1)),
        opened=[spec(sequence) for sequence in (3, 4, 5, 6)],
    ).outputs
    assert [output.sequence for output in mixed] == [3, 4, 6]
    assert mixed[1].tokens == alone.tokens
    assert mixed[1].logprobs == ()
    for output in (mixed[0], mixed[2]):
        assert output.tokens == ()
        assert output.logprobs == pytest.approx(scored.logprobs, abs=1e-4)
        assert len(output.top) == 19


def test_more_rows_of_logits_than_an_ordinary_step_has(runner: OpenVinoStepRunner) -> None:
    """They need memory of their own; the next step must read the right one."""
    steps, text = Steps(runner), tokens(101)
    first = steps.run(row(1, text[:3], 0, [0]), opened=[spec(1)]).outputs[0]
    whole = steps.run(row(2, text[:100], 0, [1, 2, 3, 4], Score(text[1:101])), opened=[spec(2)]).outputs[0]
    assert steps.run(row(3, text[:3], 0, [5]), opened=[spec(3)]).outputs[0].tokens == first.tokens
    parts: list[float] = []
    for past in range(0, 100, 5):
        want = Score(text[past + 1 : past + 6])
        opened = [spec(4)] if past == 0 else []
        parts += steps.run(row(4, text[past : past + 5], past, [6, 7, 8, 9], want), opened=opened).outputs[0].logprobs
    assert whole.logprobs == pytest.approx(parts, abs=2e-4)


def test_logits_that_are_no_distribution_fail_the_step_and_not_the_runner(runner: OpenVinoStepRunner) -> None:
    steps, text = Steps(runner), tokens(40)
    good = steps.run(row(1, text, 0, [0, 1]), opened=[spec(1)]).outputs[0].tokens
    steps.run(row(2, text[:33], 0, [2, 3], None), opened=[spec(2)])
    runner.write_blocks([2], [b"\xff" * runner.limits.bytes_per_block])
    with pytest.raises(StepError, match="sequence 2: the greatest logit of row 0 must be finite, got nan"):
        steps.run(row(2, text[33:], 33, [2, 3]))
    with pytest.raises(PlanError, match="the previous step drew no token"):
        runner.start(steps.plan(row(1, None, 40, [0, 1])))
    assert steps.run(row(3, text, 0, [4, 5]), opened=[spec(3)], closed=[2]).outputs[0].tokens == good


def test_what_was_drawn_is_carried_one_step_only(runner: OpenVinoStepRunner) -> None:
    steps, text = Steps(runner), tokens(10)
    steps.run(row(1, text, 0, [0]), row(2, text, 0, [1]), opened=[spec(1), spec(2)])
    steps.run(row(1, None, 10, [0]))
    with pytest.raises(PlanError, match="sequence 2: tokens is None"):
        runner.start(steps.plan(row(2, None, 10, [1])))


def test_a_failure_of_the_library_while_running_is_a_step_error(
    runner: OpenVinoStepRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, text = Steps(runner), tokens(10)
    session = runner._require_alive()

    def fail() -> float:
        type(session).wait(session)
        raise RuntimeError("oneDNN said no")

    with monkeypatch.context() as patch:
        patch.setattr(session, "wait", fail)
        with pytest.raises(StepError, match="step 1: the library failed: oneDNN said no") as failure:
            steps.run(row(1, text, 0, [0]), opened=[spec(1)])
    assert isinstance(failure.value.__cause__, RuntimeError)
    assert len(steps.run(row(1, text, 0, [0])).outputs) == 1


def test_a_failure_of_the_library_at_the_start_is_the_end(
    runner: OpenVinoStepRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(runner)

    def fail(_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(runner._require_alive(), "start", fail)
    with pytest.raises(EngineDeadError, match="a step could not be started: no memory") as failure:
        steps.run(row(1, [1], 0, [0]), opened=[spec(1)])
    assert isinstance(failure.value.__cause__, RuntimeError)
    with pytest.raises(EngineDeadError, match="no memory"):
        runner.read_blocks([0])


def test_every_call_after_close_says_so(runner: OpenVinoStepRunner) -> None:
    steps = Steps(runner)
    handle = runner.start(steps.plan(row(1, [1], 0, [0]), opened=[spec(1)]))
    runner.close()
    runner.close()
    for call in (
        handle.result,
        lambda: runner.start(steps.plan()),
        lambda: runner.read_blocks([0]),
        lambda: runner.write_blocks([0], [b""]),
    ):
        with pytest.raises(EngineDeadError, match="closed"):
            call()
    assert handle.done()


def step_until_dead(runner: OpenVinoStepRunner, reached: threading.Event, after: int) -> int:
    """Steps that gave a result before EngineDeadError ended it; ``reached`` is set when there are ``after`` of them."""
    steps, done = Steps(runner), 0
    while True:
        if done == after:
            reached.set()
        try:
            steps.run(row(1, tokens(100), 0, [0, 1, 2, 3]), opened=[] if done else [spec(1)])
        except EngineDeadError:
            return done
        done += 1


def close_when(runner: OpenVinoStepRunner, reached: threading.Event, delay: float) -> None:
    reached.wait()
    time.sleep(delay)
    runner.close()


def test_close_from_another_thread_at_any_moment() -> None:
    """Whatever it meets, the thread that steps gets results and then EngineDeadError, and the process lives."""
    for after, delay in ((0, 0.0), (1, 0.0), (3, 0.001), (3, 0.002), (3, 0.003), (5, 0.005)):
        runner, reached = tiny_runner(), threading.Event()
        closer = threading.Thread(target=close_when, args=(runner, reached, delay))
        closer.start()
        assert step_until_dead(runner, reached, after) >= after
        closer.join()


def test_done_without_asking_for_the_result(runner: OpenVinoStepRunner) -> None:
    """And the time that the model took is measured by the library, whenever the result is taken."""
    steps = Steps(runner)
    began = time.perf_counter()
    handle = runner.start(steps.plan(row(1, tokens(150), 0, [0, 1, 2, 3, 4]), opened=[spec(1)]))
    while not handle.done():
        time.sleep(0.001)
    elapsed = time.perf_counter() - began
    time.sleep(0.2)
    result = handle.result()
    assert 0 < result.engine_seconds <= elapsed
    assert result.sample_seconds > 0


def test_integrity_holds_between_steps(runner: OpenVinoStepRunner) -> None:
    Steps(runner).run(row(1, tokens(5), 0, [0]), opened=[spec(1)])
    runner.check_integrity()
