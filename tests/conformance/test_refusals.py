"""Whatever breaks the contract is a PlanError: nothing was run, the process lives, and the right plan still works after it."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec
import pytest

from engines.contract import BlockCopy, PlanError, Row, RunnerLimits, Sample, Score, SequenceSpec, StepPlan
from engines.sampling.params import SamplingParams
from tests.conformance.cases import RunnerCase
from tests.conformance.driver import Driver
from tests.conformance.laws import make_text

Break = Callable[[StepPlan, RunnerLimits], StepPlan]


def _row(**changes: object) -> Break:
    """The plan with its first row changed."""

    def apply(plan: StepPlan, _: RunnerLimits) -> StepPlan:
        first = msgspec.structs.replace(plan.rows[0], **changes)
        return msgspec.structs.replace(plan, rows=[first, *plan.rows[1:]])

    return apply


def _table(at: int, block: Callable[[RunnerLimits], int]) -> Break:
    """The plan with one entry of the first row's table changed."""

    def apply(plan: StepPlan, limits: RunnerLimits) -> StepPlan:
        table = plan.rows[0].blocks[0][:]
        table[at] = block(limits)
        return _row(blocks=(table,))(plan, limits)

    return apply


def _token(value: Callable[[RunnerLimits], int]) -> Break:
    def apply(plan: StepPlan, limits: RunnerLimits) -> StepPlan:
        tokens = array("i", plan.rows[0].tokens or ())
        tokens[-1] = value(limits)
        return _row(tokens=tokens)(plan, limits)

    return apply


def _target(value: Callable[[RunnerLimits], int]) -> Break:
    return lambda plan, limits: _row(want=Score(targets=array("i", [value(limits)])))(plan, limits)


def _copy(source: int, target: int, group: int = 0) -> Break:
    return lambda plan, _: msgspec.structs.replace(plan, copies=[BlockCopy(source=source, target=target, group=group)])


def _many_rows(plan: StepPlan, limits: RunnerLimits) -> StepPlan:
    return msgspec.structs.replace(plan, rows=[plan.rows[0]] * (limits.max_rows + 1))


def _many_tokens(plan: StepPlan, limits: RunnerLimits) -> StepPlan:
    tokens = array("i", [1] * (limits.max_step_tokens + 1))
    blocks = array("i", range(-(-(plan.rows[0].past + len(tokens)) // limits.block_size)))
    return _row(tokens=tokens, blocks=(blocks,))(plan, limits)


def _long_context(plan: StepPlan, limits: RunnerLimits) -> StepPlan:
    blocks = array("i", [0] * (limits.max_context // limits.block_size + 2))
    return _row(past=limits.max_context - 1, tokens=array("i", [1, 1]), blocks=(blocks,))(plan, limits)


def _written_twice(plan: StepPlan, limits: RunnerLimits) -> StepPlan:
    """The second row writes where the first row writes."""
    last = (plan.rows[0].past + len(plan.rows[0].tokens or ()) - 1) // limits.block_size
    table = plan.rows[1].blocks[0][:]
    table[0] = plan.rows[0].blocks[0][last]
    return msgspec.structs.replace(plan, rows=[plan.rows[0], msgspec.structs.replace(plan.rows[1], blocks=(table,))])


def _read_and_written(plan: StepPlan, _: RunnerLimits) -> StepPlan:
    """The second row writes where the first row reads."""
    table = plan.rows[1].blocks[0][:]
    table[0] = plan.rows[0].blocks[0][0]
    return msgspec.structs.replace(plan, rows=[plan.rows[0], msgspec.structs.replace(plan.rows[1], blocks=(table,))])


def _opened(*specs: SequenceSpec) -> Break:
    return lambda plan, _: msgspec.structs.replace(plan, opened=[*plan.opened, *specs])


def _spec(sequence: int) -> SequenceSpec:
    return SequenceSpec(sequence=sequence, index=0, sampling=SamplingParams(), prompt=array("i", [1]))


BREAKS: dict[str, Break] = {
    "block id one too high": _table(0, lambda limits: limits.block_count),
    "block id huge": _table(-1, lambda _: 2**31 - 1),
    "block id negative": _table(0, lambda _: -1),
    "token id one too high": _token(lambda limits: limits.vocab_size),
    "token id negative": _token(lambda _: -1),
    "target id one too high": _target(lambda limits: limits.vocab_size),
    "target id negative": _target(lambda _: -1),
    "more targets than tokens": _row(want=Score(targets=array("i", [1] * 200))),
    "no targets": _row(want=Score(targets=array("i"))),
    "negative top": _row(want=Score(targets=array("i", [1]), top=-1)),
    "sample more than the new tokens": _row(want=Sample(count=200)),
    "sample nothing": _row(want=Sample(count=0)),
    "no new tokens": _row(tokens=array("i")),
    "negative past": _row(past=-1),
    "table too short": _row(blocks=(array("i", [0]),)),
    "no table": _row(blocks=()),
    "a table too many": _row(blocks=(array("i", [0, 1, 2]), array("i", [3, 4, 5]))),
    "adapter": _row(adapter=1),
    "unknown sequence": _row(sequence=10**9),
    "nothing to carry": _row(tokens=None),
    "two rows of one sequence": lambda plan, _: msgspec.structs.replace(plan, rows=[plan.rows[0], plan.rows[0]]),
    "too many rows": _many_rows,
    "too many tokens": _many_tokens,
    "context too long": _long_context,
    "block written by two rows": _written_twice,
    "block read by one row, written by another": _read_and_written,
    "copy from outside": _copy(10**6, 0),
    "copy to outside": _copy(0, -1),
    "copy in another group": _copy(0, 1, group=1),
    "step number used before": lambda plan, _: msgspec.structs.replace(plan, step=plan.step - 1),
    "sequence opened twice": _opened(_spec(10**9), _spec(10**9)),
    "open sequence opened": lambda plan, limits: _opened(_spec(plan.rows[0].sequence))(plan, limits),
    "sequence closed that is not open": lambda plan, _: msgspec.structs.replace(plan, closed=[10**9]),
    "sequence closed twice": lambda plan, _: msgspec.structs.replace(plan, closed=[plan.rows[0].sequence] * 2),
    "row of a sequence that the plan closes": lambda plan, _: msgspec.structs.replace(
        plan, closed=[plan.rows[0].sequence]
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_plan_is_refused_and_changes_nothing(case: RunnerCase, driver: Driver, name: str) -> None:
    """case_M7: no id that a client sends can reach beyond its own request."""
    texts = [make_text(driver, 50, seed=60), make_text(driver, 20, seed=61)]
    first, second = driver.open(texts[0]), driver.open(texts[1])
    driver.read(first, texts[0][:41])
    plan = driver.plan(driver.reading_row(first, texts[0], 30), driver.reading_row(second, texts[1], 30))
    with pytest.raises(PlanError) as refusal:
        driver.runner.start(BREAKS[name](plan, driver.runner.limits))
    assert len(str(refusal.value)) > 10
    outputs = driver.start(plan).result().outputs
    for story, text, output in zip((first, second), texts, outputs, strict=True):
        expected = driver.read_alone(text)
        count = len(output.logprobs)
        assert [o.sequence for o in outputs] == [first.id, second.id]
        differences = [abs(a - b) for a, b in zip(output.logprobs, expected.logprobs[-count:], strict=True)]
        assert max(differences) <= case.tolerance
        driver.close(story)


def test_a_closed_sequence_is_forgotten(case: RunnerCase, driver: Driver) -> None:
    story = driver.open([1, 2, 3])
    driver.feed(story, [1, 2, 3], Sample())
    row = driver.row(story, [4], Sample())
    driver.close(story)
    driver.start(driver.plan()).result()
    with pytest.raises(PlanError, match=str(story.id)):
        driver.start(driver.plan(row))


def test_only_one_step_is_in_flight(case: RunnerCase, driver: Driver) -> None:
    text = make_text(driver, 20, seed=70)
    story = driver.open(text)
    handle = driver.start(driver.plan(driver.reading_row(story, text, 10)))
    story.past = 10
    with pytest.raises(PlanError, match="outstanding"):
        driver.start(driver.plan(driver.reading_row(story, text, 10)))
    with pytest.raises(PlanError, match="outstanding"):
        driver.runner.read_blocks([0])
    with pytest.raises(PlanError, match="outstanding"):
        driver.runner.write_blocks([0], [bytes(driver.runner.limits.bytes_per_block)])
    handle.result()
    assert handle.done()
    with pytest.raises(PlanError, match="taken already"):
        handle.result()
    driver.read(story, text)
    driver.close(story)


def test_block_reads_and_writes_are_checked(case: RunnerCase, driver: Driver) -> None:
    limits = driver.runner.limits
    content = bytes(limits.bytes_per_block)
    for block in (-1, limits.block_count):
        with pytest.raises(PlanError):
            driver.runner.read_blocks([block])
        with pytest.raises(PlanError):
            driver.runner.write_blocks([block], [content])
    with pytest.raises(PlanError):
        driver.runner.read_blocks([0], group=1)
    with pytest.raises(PlanError, match=str(limits.bytes_per_block)):
        driver.runner.write_blocks([0], [content[:-1]])
    with pytest.raises(PlanError):
        driver.runner.write_blocks([0, 1], [content])


def test_the_caller_may_append_to_its_tables_at_once(case: RunnerCase, driver: Driver) -> None:
    """start() keeps no view of tables or tokens: with one, array.append would raise BufferError."""
    story = driver.open([1, 2, 3])
    row: Row = driver.row(story, [1, 2, 3], Sample())
    handle = driver.start(driver.plan(row))
    row.blocks[0].append(0)
    row.blocks[0].pop()
    handle.result()
    driver.close(story)
