"""A step runner of which only the time is simulated: no keys, no values, and words that mean nothing.

For long replays, where what is judged is *when* something happens. It costs what the oracle costs for the same plan, step for step
(a test holds the two together), and checks what a scheduler could get wrong about sizes; whether blocks hold the right contents
only the oracle (step_runner.py) knows.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

from engines.contract import (
    EngineDeadError,
    Output,
    PlanError,
    Row,
    RunnerLimits,
    SequenceSpec,
    StepError,
    StepHandle,
    StepPlan,
    StepResult,
)
from engines.simulated.clock import Clock
from engines.simulated.cost import CostModel, StepShape
from engines.simulated.faults import Faults
from engines.simulated.step_runner import CAPABILITIES

WORD = 1
"""What it always says, until it has said enough; then its end id."""


class TimedRunner:
    """Implements engines.contract.StepRunner. Deterministic: equal plans cost equal seconds, drawn from ``seed``."""

    def __init__(
        self,
        limits: RunnerLimits,
        *,
        cost: CostModel,
        clock: Clock,
        end_id: int,
        length_of: Callable[[SequenceSpec], int],
        seed: int = 0,
        faults: Faults | None = None,
    ) -> None:
        """``length_of``: how many tokens the model says to this sequence, its end included; asked once, when it is opened."""
        self.limits = limits
        self.capabilities = CAPABILITIES
        self.faults = faults or Faults()
        self._cost = cost
        self._clock = clock
        self._end_id = end_id
        self._length_of = length_of
        self._noise = random.Random(seed)  # noqa: S311 - the same steps must cost the same
        self._left: dict[int, int] = {}
        self._ordinal = 0
        self._in_flight: _Handle | None = None
        self._dead: str | None = None

    def start(self, plan: StepPlan) -> StepHandle:
        self._require_alive()
        if self._in_flight is not None:
            raise PlanError(f"start: the result of step {self._in_flight.plan.step} is outstanding")
        if self.faults.kills(self._ordinal + 1):
            self._die("killed by a fault")
        shape = self._check(plan)
        for sequence in plan.closed:
            del self._left[sequence]
        for spec in plan.opened:
            self._left[spec.sequence] = self._length_of(spec)
        self._ordinal += 1
        seconds = self._cost.seconds(shape, self._noise) + self.faults.delay(self._ordinal)
        self._in_flight = _Handle(self, plan, seconds, self._clock.now() + seconds)
        return self._in_flight

    def _check(self, plan: StepPlan) -> StepShape:
        """The step's shape. Raises PlanError where a size is beyond a limit."""
        size, rows = self.limits.block_size, plan.rows
        new = decodes = context = 0
        attention = 0.0
        for row in rows:
            count, past = 1 if row.tokens is None else len(row.tokens), row.past
            if past + count > len(row.blocks[0]) * size or past + count > self.limits.max_context:
                raise PlanError(_too_long(row, count, self.limits))
            if count == 1 and past > 0:
                decodes += 1
                context += past + 1
            else:
                new += count
                attention += count * (past + count / 2)
        if len(rows) > self.limits.max_rows or new + decodes > self.limits.max_step_tokens:
            raise PlanError(
                f"step {plan.step}: {len(rows)} rows and {new + decodes} tokens, at most {self.limits.max_rows} and "
                f"{self.limits.max_step_tokens}"
            )
        return StepShape(new, decodes, context, attention)

    def is_done(self, handle: _Handle) -> bool:
        """Whether taking this handle's result would not wait."""
        return handle is not self._in_flight or self._clock.now() >= handle.ready_at

    def finish(self, handle: _Handle) -> StepResult:
        """The handle's result; called once, by the handle."""
        self._require_alive()
        if handle is not self._in_flight:
            raise PlanError(f"step {handle.plan.step}: its result was taken already")
        if self.faults.kills(self._ordinal) or self.faults.hangs(self._ordinal):
            self._die("killed by a fault")
        self._clock.wait(handle.ready_at, _NEVER)
        self._in_flight = None
        if self.faults.fails(self._ordinal):
            raise StepError(f"step {handle.plan.step}: failed on purpose")
        return StepResult(handle.plan.step, self._say(handle.plan), handle.seconds)

    def _say(self, plan: StepPlan) -> list[Output]:
        left, outputs = self._left, []
        for row in plan.rows:
            if row.want is not None:
                sequence = row.sequence
                left[sequence] -= 1
                outputs.append(Output(sequence, _WORDS if left[sequence] > 0 else (self._end_id,)))
        return outputs

    def read_blocks(self, blocks: Sequence[int], group: int = 0) -> list[bytes]:
        raise PlanError(f"read_blocks: blocks have no contents here, asked for {len(blocks)} of group {group}")

    def write_blocks(self, blocks: Sequence[int], contents: Sequence[bytes], group: int = 0) -> None:
        raise PlanError(
            f"write_blocks: blocks have no contents here, given {len(contents)} for {len(blocks)} of {group}"
        )

    def close(self) -> None:
        self._dead = self._dead or "simulated engine: closed"

    def _require_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead)

    def _die(self, why: str) -> None:
        self._dead = f"simulated engine: {why}"
        raise EngineDeadError(self._dead)


class _Handle:
    """A started step of one runner."""

    __slots__ = ("_runner", "plan", "ready_at", "seconds")

    def __init__(self, runner: TimedRunner, plan: StepPlan, seconds: float, ready_at: float) -> None:
        self._runner = runner
        self.plan = plan
        self.seconds = seconds
        self.ready_at = ready_at

    def done(self) -> bool:
        return self._runner.is_done(self)

    def result(self) -> StepResult:
        return self._runner.finish(self)


_WORDS = (WORD,)
_NEVER = threading.Event()


def _too_long(row: Row, count: int, limits: RunnerLimits) -> str:
    return (
        f"sequence {row.sequence}: {row.past} + {count} tokens, its {len(row.blocks[0])} blocks hold "
        f"{len(row.blocks[0]) * limits.block_size}, the context {limits.max_context}"
    )
