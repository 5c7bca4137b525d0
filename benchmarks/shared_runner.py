"""One step runner for two drivers that take turns: the server's batcher, and the bare loop that it is compared with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from engines.contract import Capabilities, RunnerLimits, StepHandle, StepPlan, StepResult, StepRunner


class SharedRunner:
    """Renumbers steps, so that they increase whoever drives. The drivers keep their sequence ids apart, and must not overlap in time."""

    first_foreign_sequence = 1 << 40
    """Ids from here on are the other driver's."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._steps = itertools.count(1)

    @property
    def limits(self) -> RunnerLimits:
        return self._runner.limits

    @property
    def capabilities(self) -> Capabilities:
        return self._runner.capabilities

    def start(self, plan: StepPlan) -> StepHandle:
        return _Handle(self._runner.start(msgspec.structs.replace(plan, step=next(self._steps))), plan.step)

    def read_blocks(self, blocks: Sequence[int], group: int = 0) -> list[bytes]:
        return self._runner.read_blocks(blocks, group)

    def write_blocks(self, blocks: Sequence[int], contents: Sequence[bytes], group: int = 0) -> None:
        self._runner.write_blocks(blocks, contents, group)

    def close(self) -> None:
        self._runner.close()


class _Handle:
    def __init__(self, handle: StepHandle, step: int) -> None:
        self._handle = handle
        self._step = step

    def done(self) -> bool:
        return self._handle.done()

    def result(self) -> StepResult:
        return msgspec.structs.replace(self._handle.result(), step=self._step)
