"""What the simulated step runner adds to the contract: time, faults, and the agreement of its modes."""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Sequence

import pytest

from engines.contract import EngineDeadError, EngineError, PlanError, Sample, Score, StepError, StepPlan
from engines.sampling.params import SamplingParams
from engines.simulated.clock import RealClock, VirtualClock
from engines.simulated.cost import CostModel, StepShape
from engines.simulated.draws import Draw, Drawn, LogitDrawer, TokenDrawer
from engines.simulated.faults import Faults
from tests.simulated.rig import LANGUAGE, greedy, make_row, make_runner, make_spec, run

PROMPT = list(range(50, 61))
TABLE = list(range(8))


# ------------------------------------------------------------------ time


def test_virtual_time_moves_by_the_cost_of_each_step() -> None:
    clock = VirtualClock()
    cost = CostModel(fixed=1.0, per_new_token=0.1, per_decode=0.5, per_decode_context=0.01)
    runner = make_runner(cost=cost, clock=clock)
    run(runner, 1, make_row(1, PROMPT, 0, TABLE), opened=[make_spec(1, PROMPT)])
    assert clock.now() == pytest.approx(1.0 + 0.1 * 11)
    run(runner, 2, make_row(1, None, 11, TABLE))
    assert clock.now() == pytest.approx(2.1 + 1.0 + 0.5 + 0.01 * 12)


def test_a_step_is_done_when_its_time_has_come() -> None:
    clock = VirtualClock()
    runner = make_runner(cost=CostModel(fixed=2.0), clock=clock)
    handle = runner.start(StepPlan(step=1, rows=[]))
    assert not handle.done()
    clock.advance(1.5)
    assert not handle.done()
    assert handle.result().engine_seconds == 2.0
    assert clock.now() == 2.0
    assert handle.done()


def test_time_spent_elsewhere_counts() -> None:
    """What the caller does while the step runs does not make it longer."""
    clock = VirtualClock()
    runner = make_runner(cost=CostModel(fixed=2.0), clock=clock)
    handle = runner.start(StepPlan(step=1, rows=[]))
    clock.advance(5.0)
    handle.result()
    assert clock.now() == 5.0


def test_in_real_time_other_threads_run_while_a_step_does() -> None:
    runner = make_runner(cost=CostModel(fixed=0.2), clock=RealClock())
    turns = 0
    over = threading.Event()

    def count() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    began = time.monotonic()
    runner.start(StepPlan(step=1, rows=[])).result()
    elapsed = time.monotonic() - began
    over.set()
    counter.join()
    assert elapsed >= 0.2
    assert turns > 3, "the interpreter was held for as long as the step ran"


def test_the_same_steps_cost_the_same_and_noise_is_noise() -> None:
    def times(seed: int) -> list[float]:
        noise = random.Random(seed)  # noqa: S311 - the same noise every run
        model = CostModel(fixed=1.0, noise=0.1)
        return [model.seconds(StepShape(new=0, decodes=1, decode_context=5, attention=0.0), noise) for _ in range(200)]

    assert times(1) == times(1) != times(2)
    ordered = sorted(times(1))
    assert 0.97 < ordered[100] < 1.03
    assert ordered[0] < 0.85
    assert ordered[-1] > 1.15


def test_beyond_the_kink_tokens_are_dearer() -> None:
    model = CostModel(per_new_token=1.0, kink_at=10, kink_factor=3.0)
    costs = [model.expected(StepShape(new=new, decodes=0, decode_context=0, attention=0.0)) for new in (9, 10, 11, 12)]
    assert costs == [9.0, 10.0, 13.0, 16.0]


# ------------------------------------------------------------------ faults


def test_a_failed_step_leaves_garbage_and_the_runner_lives() -> None:
    runner = make_runner(faults=Faults(fail_steps=[2]))
    run(runner, 1, make_row(1, PROMPT[:8], 0, TABLE, None), opened=[make_spec(1, PROMPT)])
    with pytest.raises(StepError, match="step 2"):
        run(runner, 2, make_row(1, PROMPT[8:], 8, TABLE))
    with pytest.raises(PlanError, match="previous step drew nothing"):
        run(runner, 3, make_row(1, None, 11, TABLE))
    with pytest.raises(PlanError, match="block 2 at index 2"):
        run(runner, 3, make_row(1, [4], 11, TABLE))
    (output,) = run(runner, 3, make_row(1, PROMPT[8:], 8, TABLE))
    assert list(output.tokens) == greedy(PROMPT, 1)


def test_a_step_can_be_failed_at_run_time() -> None:
    runner = make_runner()
    runner.faults.fail_next_step()
    with pytest.raises(StepError):
        run(runner, 1)
    assert run(runner, 2) == []


def test_a_dying_engine_stays_dead() -> None:
    runner = make_runner(faults=Faults(die_at=2))
    run(runner, 1)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="killed by a fault"):
            run(runner, 2)
    with pytest.raises(EngineDeadError):
        runner.read_blocks([0])


def test_an_engine_can_die_amid_a_step() -> None:
    runner = make_runner()
    handle = runner.start(StepPlan(step=1, rows=[]))
    runner.faults.die()
    with pytest.raises(EngineDeadError):
        handle.result()


def test_a_hanging_step_ends_with_close() -> None:
    runner = make_runner(faults=Faults(hang_at=1), clock=RealClock())
    handle = runner.start(StepPlan(step=1, rows=[]))
    ended: list[str] = []

    def wait() -> None:
        try:
            handle.result()
        except EngineDeadError as error:
            ended.append(str(error))

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    waiter.join(timeout=0.05)
    assert waiter.is_alive()
    assert not handle.done()
    runner.close()
    waiter.join(timeout=60)
    assert len(ended) == 1
    assert handle.done()


def test_a_slow_step_takes_longer() -> None:
    clock = VirtualClock()
    runner = make_runner(clock=clock, faults=Faults(slow_steps={2: 3.0}))
    run(runner, 1)
    assert clock.now() == 0.0
    run(runner, 2)
    assert clock.now() == 3.0


# ------------------------------------------------------------------ modes


def test_both_modes_say_the_same_when_greedy_and_score_the_same() -> None:
    outputs = []
    for drawer in (None, LogitDrawer(LANGUAGE)):
        runner = make_runner(drawer=drawer)
        spec = make_spec(1, PROMPT, sampling=SamplingParams(logprobs=4))
        first = run(runner, 1, make_row(1, PROMPT, 0, TABLE, Sample(count=5)), opened=[spec])
        score = run(runner, 2, make_row(1, [3, 4], 11, TABLE, Score(targets=array("i", [7, 8]), top=2)))
        outputs.append((first, score))
    assert outputs[0] == outputs[1]


def test_in_logits_mode_every_sampling_parameter_acts() -> None:
    said = {}
    for name, sampling in {
        "greedy": SamplingParams(),
        "one candidate": SamplingParams(temperature=5.0, top_k=1, seed=1),
        "tiny nucleus": SamplingParams(temperature=1.0, top_p=1e-6, seed=1),
        "hot": SamplingParams(temperature=5.0, seed=1),
        "hot again": SamplingParams(temperature=5.0, seed=1),
        "other seed": SamplingParams(temperature=5.0, seed=2),
    }.items():
        runner = make_runner(drawer=LogitDrawer(LANGUAGE))
        spec = make_spec(1, PROMPT, sampling=sampling)
        (output,) = run(runner, 1, make_row(1, PROMPT, 0, TABLE, Sample(count=11)), opened=[spec])
        said[name] = output.tokens
    assert said["greedy"] == said["one candidate"] == said["tiny nucleus"]
    assert said["hot"] == said["hot again"] != said["greedy"]
    assert said["other seed"] != said["hot"]


def test_a_closed_id_is_not_opened_again() -> None:
    runner = make_runner()
    run(runner, 1, opened=[make_spec(1, PROMPT)])
    run(runner, 2, closed=[1])
    with pytest.raises(PlanError, match="never reused, got 1 again"):
        run(runner, 3, opened=[make_spec(1, PROMPT)])


def test_a_prompt_with_ids_out_of_range_is_refused() -> None:
    with pytest.raises(PlanError, match=r"prompt ids must be 0 \.\. 999"):
        run(make_runner(), 1, opened=[make_spec(1, [1000])])


class FailingDrawer(TokenDrawer):
    def draw(self, draws: Sequence[Draw]) -> list[Drawn]:
        raise StepError(f"{len(draws)} rows are no distributions")


def test_a_sampler_that_fails_fails_the_step_only() -> None:
    runner = make_runner(drawer=FailingDrawer(LANGUAGE))
    with pytest.raises(StepError, match="1 rows"):
        run(runner, 1, make_row(1, PROMPT, 0, TABLE), opened=[make_spec(1, PROMPT)])
    assert run(runner, 2) == []


def test_integrity_holds_after_steps_and_refusals_and_notices_a_wrong_state() -> None:
    runner = make_runner()
    run(runner, 1, make_row(1, PROMPT, 0, TABLE), opened=[make_spec(1, PROMPT), make_spec(2, PROMPT)])
    with pytest.raises(PlanError, match="is written by sequences 1 and 2"):
        run(runner, 2, make_row(1, [5], 11, TABLE), make_row(2, PROMPT, 0, TABLE))
    runner.check_integrity()
    run(runner, 2, make_row(1, None, 11, TABLE), closed=[2])
    runner.check_integrity()
    runner._sequences[1].history._borders[-1] += 1
    with pytest.raises(EngineError, match="sequence 1: its state"):
        runner.check_integrity()
