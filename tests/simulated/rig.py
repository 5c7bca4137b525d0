"""Small factories for the tests of the simulated engines."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from engines.contract import BlockCopy, Output, Row, Sample, SequenceSpec, StepPlan, TokenArray, Want
from engines.sampling.params import SamplingParams
from engines.simulated.clock import Clock, VirtualClock
from engines.simulated.cost import CostModel
from engines.simulated.draws import Drawer
from engines.simulated.faults import Faults
from engines.simulated.history import History
from engines.simulated.language import Language
from engines.simulated.step_runner import SimulatedStepRunner

BLOCK = 4
LANGUAGE = Language(1000, end_ids=(2,), end_rate=0.0, seed=7)
ONE = Sample()


def ids(*values: int) -> TokenArray:
    return array("i", values)


def make_runner(
    *,
    language: Language = LANGUAGE,
    strict: bool = True,
    cost: CostModel | None = None,
    clock: Clock | None = None,
    faults: Faults | None = None,
    drawer: Drawer | None = None,
) -> SimulatedStepRunner:
    """Small blocks, garbage where nothing was written, everything checked."""
    return SimulatedStepRunner(
        language,
        blocks=64,
        block_size=BLOCK,
        max_rows=8,
        max_step_tokens=128,
        max_context=128,
        cost=cost,
        clock=clock or VirtualClock(),
        drawer=drawer,
        strict=strict,
        paranoid=strict,
        poison=True,
        faults=faults,
    )


def make_spec(
    sequence: int, prompt: Sequence[int], *, index: int = 0, sampling: SamplingParams | None = None
) -> SequenceSpec:
    return SequenceSpec(
        sequence=sequence, index=index, sampling=sampling or SamplingParams(), prompt=array("i", prompt)
    )


def make_row(sequence: int, tokens: Sequence[int] | None, past: int, table: Sequence[int], want: Want = ONE) -> Row:
    new = None if tokens is None else array("i", tokens)
    return Row(sequence=sequence, tokens=new, past=past, blocks=(array("i", table),), want=want)


def run(
    runner: SimulatedStepRunner,
    step: int,
    *rows: Row,
    copies: Sequence[BlockCopy] = (),
    opened: Sequence[SequenceSpec] = (),
    closed: Sequence[int] = (),
) -> list[Output]:
    plan = StepPlan(step=step, rows=list(rows), copies=copies, opened=opened, closed=closed)
    return runner.start(plan).result().outputs


def greedy(prompt: Sequence[int], count: int, language: Language = LANGUAGE, block_size: int = BLOCK) -> list[int]:
    """What the simulated model says after ``prompt``, without blocks."""
    history = History(block_size, prompt)
    said = []
    for _ in range(count):
        said.append(language.likeliest(history.state))
        history.append(said[-1])
    return said
