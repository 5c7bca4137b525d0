"""A step runner driven by hand, one step at a time: what verification and the profile are made of."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from engines.contract import Output, Row, RunnerLimits, Sample, Score, SequenceSpec, StepPlan, StepRunner, Want
from engines.sampling.params import SamplingParams


@dataclass
class Lane:
    """One sequence and the blocks that it may write."""

    sequence: int
    blocks: array[int]
    tokens: list[int]
    computed: int = 0
    """Tokens whose keys and values are in the blocks."""
    opened: bool = field(default=False, repr=False)


class Driver:
    """Hands out sequence ids and blocks, builds plans, runs them to the end. A runner has one driver: its steps are numbered."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._step = 0
        self._next_sequence = 0
        self._free = list(range(runner.limits.block_count))

    @property
    def limits(self) -> RunnerLimits:
        return self._runner.limits

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def lane(self, tokens: Sequence[int], room: int, shared: array[int] | None = None) -> Lane:
        """A new sequence with blocks for ``room`` tokens; ``shared`` blocks stand first and are only read."""
        size = self._runner.limits.block_size
        table = array("i", shared or [])
        while len(table) * size < room:
            table.append(self._free.pop())
        self._next_sequence += 1
        return Lane(self._next_sequence, table, list(tokens))

    def release(self, lanes: Sequence[Lane], shared: int = 0) -> None:
        """Give back the lanes' blocks, but for the first ``shared`` of each."""
        self._free.extend(block for lane in lanes for block in lane.blocks[shared:])
        self._run([], [lane.sequence for lane in lanes if lane.opened])

    def step(self, work: Sequence[tuple[Lane, int, Want]]) -> list[Output]:
        """Run the next ``count`` tokens of each lane."""
        return self.timed_step(work)[0]

    def timed_step(self, work: Sequence[tuple[Lane, int, Want]]) -> tuple[list[Output], float]:
        """As step, and the seconds from the start of planning's hand-over to the result."""
        rows = [self._row(lane, count, want) for lane, count, want in work]
        opened = [lane for lane, _, _ in work if not lane.opened]
        specs = [SequenceSpec(lane.sequence, 0, SamplingParams(), array("i", lane.tokens)) for lane in opened]
        outputs, seconds = self._run(rows, [], specs)
        for lane, count, _ in work:
            lane.opened = True
            lane.computed += count
        return outputs, seconds

    def score(self, lane: Lane, count: int, top: int = 0) -> tuple[Lane, int, Want]:
        """Work for step(): run ``count`` tokens and score the token that follows each."""
        start = lane.computed + 1
        return lane, count, Score(array("i", lane.tokens[start : start + count]), top)

    def greedy(self, lane: Lane, count: int) -> tuple[Lane, int, Want]:
        """Work for step(): run ``count`` tokens and draw the one that follows the last."""
        return lane, count, Sample()

    def _row(self, lane: Lane, count: int, want: Want) -> Row:
        new = array("i", lane.tokens[lane.computed : lane.computed + count])
        groups = len(self._runner.limits.kv_groups)
        return Row(lane.sequence, new, lane.computed, (lane.blocks,) * groups, want)

    def _run(
        self, rows: list[Row], closed: Sequence[int], opened: Sequence[SequenceSpec] = ()
    ) -> tuple[list[Output], float]:
        self._step += 1
        plan = StepPlan(self._step, rows, opened=opened, closed=closed)
        started = time.perf_counter()
        result = self._runner.start(plan).result()
        return result.outputs, time.perf_counter() - started
