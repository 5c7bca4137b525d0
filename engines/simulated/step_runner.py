"""The simulated step runner: an oracle that derives every token from what it reads back through the block tables."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from engines.contract import (
    Capabilities,
    EngineDeadError,
    EngineError,
    KvGroup,
    Output,
    PlanError,
    RunnerLimits,
    StepError,
    StepHandle,
    StepPlan,
    StepResult,
)
from engines.simulated.attention import Readback, read_back, through_copies, write_new
from engines.simulated.clock import Clock, RealClock
from engines.simulated.cost import CostModel
from engines.simulated.draws import Drawer, TokenDrawer
from engines.simulated.faults import Faults
from engines.simulated.language import Language
from engines.simulated.memory import BYTES_PER_TOKEN, BlockMemory
from engines.simulated.oracle import check_cells, check_histories
from engines.simulated.outputs import collect
from engines.simulated.sequences import OpenSequence, SequenceTable
from engines.simulated.staging import StagedStep, check_writers, stage

CAPABILITIES = Capabilities(
    batch_invariant=True,
    preemption=True,
    score=True,
    masks=False,
    adapters=False,
    salts=True,
    block_io=True,
    immediate_cancel=True,
    lookahead=15,
)

_KV_GROUPS = (KvGroup(layers=(0,), window=None, bytes_per_token=BYTES_PER_TOKEN),)


class SimulatedStepRunner:
    """Implements engines.contract.StepRunner.

    ``strict``: whatever in a plan does not fit what the runner was told of its sequences is a PlanError that names the block. Without
    it a wrong block is read as a real engine would read it, and the output changes. ``paranoid`` recomputes, besides, all that a step
    reads from single cells, O(context). ``poison``: unwritten blocks hold garbage.

    What a step writes is written when its result is taken, so nothing can lean on it sooner.
    """

    _in_flight: _Handle | None = None
    _last_step: int | None = None
    _ordinal = 0
    """Steps started so far; a fault names a step by it."""
    _dead: str | None = None

    def __init__(
        self,
        language: Language,
        *,
        blocks: int,
        block_size: int = 32,
        max_rows: int = 256,
        max_step_tokens: int = 2048,
        max_context: int = 8192,
        cost: CostModel | None = None,
        clock: Clock | None = None,
        seed: int = 0,
        drawer: Drawer | None = None,
        strict: bool = True,
        paranoid: bool = False,
        poison: bool = False,
        faults: Faults | None = None,
    ) -> None:
        """``seed`` is that of the cost's noise and of garbage; the tokens' is the language's. ``drawer``: None = by hash."""
        self._limits = RunnerLimits(
            vocab_size=language.vocab_size,
            block_size=block_size,
            block_count=blocks,
            bytes_per_block=block_size * BYTES_PER_TOKEN,
            max_rows=max_rows,
            max_step_tokens=max_step_tokens,
            max_context=max_context,
            kv_groups=_KV_GROUPS,
        )
        self.faults = faults or Faults()
        self.clock: Clock = clock or RealClock()
        self._cost = cost or CostModel()
        self._noise = random.Random(seed)  # noqa: S311 - the same steps must cost the same
        self._drawer: Drawer = drawer or TokenDrawer(language)
        self._capabilities = msgspec.structs.replace(CAPABILITIES, masks=self._drawer.guides)
        self._strict = strict
        self._paranoid = paranoid
        self._memory = BlockMemory(blocks, block_size, poison=poison, seed=seed)
        self._sequences = SequenceTable(language.vocab_size, block_size)
        self._owners = np.full(blocks, -1, dtype=np.int32)
        self._closing = threading.Event()

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    # ------------------------------------------------------------------ steps

    def start(self, plan: StepPlan) -> StepHandle:
        self._require_idle("start")
        if self.faults.kills(self._ordinal + 1):
            self._die("killed by a fault")
        if self._last_step is not None and plan.step <= self._last_step:
            raise PlanError(f"step: must be above {self._last_step}, got {plan.step}")
        ordinal = self._ordinal + 1
        sequences = self._sequences.check(plan)
        carried = [None if row.tokens is not None else sequences[row.sequence].carried(ordinal) for row in plan.rows]
        staged = stage(plan, self._limits, carried)
        check_writers(staged, self._limits.block_size, self._owners)
        read = self._read(plan, staged, sequences)
        self._commit(plan, sequences)
        seconds = self._cost.seconds(staged.shape(), self._noise) + self.faults.delay(ordinal)
        self._in_flight = _Handle(self, plan, staged, read, seconds, self.clock.now() + seconds)
        return self._in_flight

    def _read(self, plan: StepPlan, staged: StagedStep, sequences: dict[int, OpenSequence]) -> Readback:
        table = through_copies(staged.table, plan.copies)
        read = read_back(staged, table, self._memory)
        if self._strict:
            check_histories(staged, table, read, self._memory, sequences)
        if self._paranoid:
            check_cells(staged, table, self._memory)
        return read

    def _commit(self, plan: StepPlan, sequences: dict[int, OpenSequence]) -> None:
        self._sequences.apply(plan, sequences)
        for sequence in plan.closed:
            self._drawer.close(sequence)
        for spec in plan.opened:
            self._drawer.open(spec)
        self._last_step = plan.step
        self._ordinal += 1

    def _is_done(self, handle: _Handle) -> bool:
        if handle is not self._in_flight or self._dead is not None or self._closing.is_set():
            return True
        return not self.faults.hangs(self._ordinal) and self.clock.now() >= handle.ready_at

    def _finish(self, handle: _Handle) -> StepResult:
        """Run the staged step, then wait until its time is over."""
        if handle is not self._in_flight:
            raise PlanError(f"step {handle.plan.step}: its result was taken already")
        self._require_alive()
        if self.faults.hangs(self._ordinal):
            self._closing.wait()
        if not self._closing.is_set() and self.faults.kills(self._ordinal):
            self._die("killed by a fault")
        try:
            outputs = self._run(handle.plan, handle.staged, handle.read)
        finally:
            closed = self.clock.wait(handle.ready_at, self._closing)
            self._in_flight = None
        if closed:
            self._die("closed while a step was in flight")
        return StepResult(step=handle.plan.step, outputs=outputs, engine_seconds=handle.seconds)

    def _run(self, plan: StepPlan, staged: StagedStep, read: Readback) -> list[Output]:
        if self.faults.fails(self._ordinal):
            self._spoil(plan, staged)
            raise StepError(f"step {plan.step}: failed on purpose")
        self._memory.copy(plan.copies)
        if not plan.rows:
            return []
        states = write_new(staged, read, self._memory)
        if self._strict:
            self._remember(staged)
        outputs = collect(staged, states, self._sequences, self._drawer)
        for output in outputs:
            if output.tokens:
                self._sequences[output.sequence].carry(output.tokens[-1], self._ordinal)
        return outputs

    def _remember(self, staged: StagedStep) -> None:
        for at, row in enumerate(staged.rows):
            history = self._sequences[row.sequence].history
            history.truncate(row.past)
            history.extend(staged.tokens_of(at))

    def _spoil(self, plan: StepPlan, staged: StagedStep) -> None:
        """A failed step leaves garbage in every block that it was to write."""
        blocks = {copy.target for copy in plan.copies}
        blocks.update(*staged.written(self._limits.block_size))
        self._memory.scramble(np.array(sorted(blocks), dtype=np.int64))

    # ------------------------------------------------------------------ blocks

    def read_blocks(self, blocks: Sequence[int], group: int = 0) -> list[bytes]:
        self._check_blocks("read_blocks", blocks, group)
        return [self._memory.dump(block) for block in blocks]

    def write_blocks(self, blocks: Sequence[int], contents: Sequence[bytes], group: int = 0) -> None:
        self._check_blocks("write_blocks", blocks, group)
        if len(contents) != len(blocks):
            raise PlanError(f"write_blocks: {len(blocks)} blocks, but {len(contents)} contents")
        for content in contents:
            if len(content) != self._limits.bytes_per_block:
                raise PlanError(f"write_blocks: a block is {self._limits.bytes_per_block} bytes, got {len(content)}")
        for block, content in zip(blocks, contents, strict=True):
            self._memory.restore(block, content)

    def scramble(self, blocks: Sequence[int]) -> None:
        """Tests: put garbage into blocks that must not matter any more."""
        self._check_blocks("scramble", blocks, 0)
        self._memory.scramble(np.array(blocks, dtype=np.int64))

    def _check_blocks(self, what: str, blocks: Sequence[int], group: int) -> None:
        self._require_idle(what)
        if group != 0:
            raise PlanError(f"{what}: group must be 0, got {group}")
        for block in blocks:
            if not 0 <= block < self._limits.block_count:
                raise PlanError(f"{what}: block ids must be 0 .. {self._limits.block_count - 1}, got {block}")

    def check_integrity(self) -> None:
        """Raises EngineError where what is kept between steps contradicts itself. Engine thread, between steps."""
        if (self._owners != -1).any():
            raise EngineError(f"block {int(np.argmax(self._owners != -1))} is still owned after its step was checked")
        self._sequences.check_integrity()

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """May be called from any thread; ends a result() that waits."""
        self._closing.set()

    def _require_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        if self._closing.is_set():
            self._die("closed")

    def _require_idle(self, what: str) -> None:
        self._require_alive()
        if self._in_flight is not None:
            raise PlanError(f"{what}: the result of step {self._in_flight.plan.step} is outstanding")

    def _die(self, why: str) -> None:
        self._dead = f"simulated engine: {why}"
        raise EngineDeadError(self._dead)


@dataclass(eq=False, slots=True)
class _Handle:
    """A started step of one runner."""

    runner: SimulatedStepRunner
    plan: StepPlan
    staged: StagedStep
    read: Readback
    seconds: float
    ready_at: float

    def done(self) -> bool:
        return self.runner._is_done(self)  # noqa: SLF001 - the handle is only the step's name; the runner holds it

    def result(self) -> StepResult:
        return self.runner._finish(self)  # noqa: SLF001 - as above
