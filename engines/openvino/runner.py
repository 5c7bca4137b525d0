"""The step runner over a compiled model: check, stage, run, sample."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

import openvino as ov

from engines.contract import (
    Capabilities,
    EngineDeadError,
    KvGroup,
    Output,
    PlanError,
    RunnerLimits,
    StepError,
    StepHandle,
    StepPlan,
    StepResult,
)
from engines.manifest import EngineManifest
from engines.openvino.fitness import openvino_version, processor
from engines.openvino.kv_memory import KvMemory
from engines.openvino.layout import StepLayout, lay_out
from engines.openvino.plan_check import PlanCheck, check_blocks, check_copies, check_sequences
from engines.openvino.readout import read_out
from engines.openvino.session import ModelSession
from engines.sampling.constraint import Constraints
from engines.sampling.sampler import Sampler


@dataclass(frozen=True)
class LoadTimings:
    """Seconds that the parts of loading took; where two forms of the weights load side by side, those of the slower one."""

    preflight_seconds: float
    """Files, versions, processor and memory against the manifest."""
    read_seconds: float
    transform_seconds: float
    compile_seconds: float
    allocate_seconds: float


class OpenVinoStepRunner:
    """Implements engines.contract.StepRunner. Made by the loader."""

    def __init__(
        self,
        manifest: EngineManifest,
        forms: Sequence[ov.CompiledModel],
        memory: KvMemory,
        timings: LoadTimings,
        *,
        max_rows: int,
        max_step_tokens: int,
        constraints: Constraints | None = None,
    ) -> None:
        """``forms``: see ModelSession. ``constraints``: what makes constraints of guides; None = no structured output."""
        self.manifest = manifest
        self.load_timings = timings
        self._limits = _limits(manifest, memory, max_rows, max_step_tokens)
        self._session: ModelSession | None = ModelSession(forms, memory, self._limits)
        self._plan_check = PlanCheck(self._limits)
        self._sampler = Sampler(manifest.model.vocab_size, constraints)
        self._drawn: dict[int, int] = {}
        self._last_step: int | None = None
        self._in_flight: _Handle | None = None
        self._dead: str | None = None
        # close() may come from any thread: it must not free the memory between a start()'s first look and the model's start.
        self._life = Lock()

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            batch_invariant=self.manifest.numerics.batch_invariant,
            preemption=True,
            score=True,
            masks=self._sampler.guides,
            adapters=False,
            salts=True,
            block_io=True,
            immediate_cancel=True,
            lookahead=self._limits.max_step_tokens - 1,
        )

    # ------------------------------------------------------------------ steps

    def start(self, plan: StepPlan) -> StepHandle:
        with self._life:
            session = self._require_idle("start")
            if self._last_step is not None and plan.step <= self._last_step:
                raise PlanError(f"step: must be above {self._last_step}, the last one started, got {plan.step}")
            layout = self._checked(plan)
            for sequence in plan.closed:
                self._sampler.close(sequence)
            for spec in plan.opened:
                self._sampler.open(spec)
            self._last_step = plan.step
            session.memory.copy(plan.copies)
            self._in_flight = _Handle(self, plan, layout)
            if plan.rows:
                self._launch(session, layout)
            return self._in_flight

    def _launch(self, session: ModelSession, layout: StepLayout) -> None:
        try:
            session.start(layout)
        except (RuntimeError, MemoryError) as error:
            self._dead = f"a step could not be started: {error}"
            raise EngineDeadError(f"openvino engine: {self._dead}") from error

    def _checked(self, plan: StepPlan) -> StepLayout:
        """All checks, no change. Raises PlanError."""
        check_sequences(plan, self._sampler, self._limits)
        check_copies(plan, self._limits)
        layout = lay_out(plan, self._drawn, self._limits)
        if plan.rows:
            self._plan_check.check(plan, layout)
        return layout

    def _is_done(self, handle: _Handle) -> bool:
        session = self._session
        return handle is not self._in_flight or session is None or not handle.plan.rows or session.is_done()

    def _finish(self, handle: _Handle) -> StepResult:
        session = self._require_alive()
        if handle is not self._in_flight:
            raise PlanError(f"step {handle.plan.step}: its result was taken already")
        self._drawn = {}
        try:
            engine_seconds = session.wait() if handle.plan.rows else 0.0
        except (RuntimeError, MemoryError) as error:
            self._require_alive()
            raise StepError(f"step {handle.plan.step}: the library failed: {error}") from error
        finally:
            self._in_flight = None
        began = time.perf_counter()
        outputs: list[Output] = []
        if handle.layout.wanted:
            outputs = read_out(handle.plan.rows, handle.layout, session.logits(), self._sampler)
        self._drawn = {output.sequence: output.tokens[-1] for output in outputs if output.tokens}
        return StepResult(handle.plan.step, outputs, engine_seconds, time.perf_counter() - began)

    # ------------------------------------------------------------------ blocks

    def read_blocks(self, blocks: Sequence[int], group: int = 0) -> list[bytes]:
        memory = self._require_idle("read_blocks").memory
        self._check_block_io("read_blocks", blocks, group)
        return [memory.read(block) for block in blocks]

    def write_blocks(self, blocks: Sequence[int], contents: Sequence[bytes], group: int = 0) -> None:
        memory = self._require_idle("write_blocks").memory
        self._check_block_io("write_blocks", blocks, group)
        if len(contents) != len(blocks):
            raise PlanError(f"write_blocks: {len(blocks)} blocks need as many contents, got {len(contents)}")
        for content in contents:
            if len(content) != self._limits.bytes_per_block:
                raise PlanError(f"write_blocks: a block is {self._limits.bytes_per_block} bytes, got {len(content)}")
        for block, content in zip(blocks, contents, strict=True):
            memory.write(block, content)

    def _check_block_io(self, what: str, blocks: Sequence[int], group: int) -> None:
        if group != 0:
            raise PlanError(f"{what}: group must be 0, got {group}")
        check_blocks(what, blocks, self._limits.block_count)

    def check_integrity(self) -> None:
        """Raises StepError where what is kept between steps contradicts itself. Engine thread, between steps."""
        self._sampler.check_integrity()

    # ------------------------------------------------------------------ life

    def close(self) -> None:
        """From any thread. Cancels a running step, whose result() then raises EngineDeadError, and frees the KV memory."""
        with self._life:
            self._dead = self._dead or "closed"
            session, self._session = self._session, None
            if session is not None:
                session.settle()

    def _require_alive(self) -> ModelSession:
        session = self._session
        if self._dead is not None or session is None:
            raise EngineDeadError(f"openvino engine: {self._dead}")
        return session

    def _require_idle(self, what: str) -> ModelSession:
        session = self._require_alive()
        if self._in_flight is not None:
            raise PlanError(f"{what}: the result of step {self._in_flight.plan.step} is outstanding")
        return session


class _Handle:
    """A started step of one runner."""

    __slots__ = ("_runner", "layout", "plan")

    def __init__(self, runner: OpenVinoStepRunner, plan: StepPlan, layout: StepLayout) -> None:
        self._runner = runner
        self.plan = plan
        self.layout = layout

    def done(self) -> bool:
        return self._runner._is_done(self)  # noqa: SLF001 - the handle is only the step's name; the runner holds it

    def result(self) -> StepResult:
        return self._runner._finish(self)  # noqa: SLF001 - as above


def _limits(manifest: EngineManifest, memory: KvMemory, max_rows: int, max_step_tokens: int) -> RunnerLimits:
    bytes_per_token = memory.bytes_per_block // memory.block_size
    return RunnerLimits(
        vocab_size=manifest.model.vocab_size,
        block_size=memory.block_size,
        block_count=memory.block_count,
        bytes_per_block=memory.bytes_per_block,
        max_rows=max_rows,
        max_step_tokens=max_step_tokens,
        max_context=manifest.model.max_context,
        kv_groups=(KvGroup(tuple(range(memory.layers)), None, bytes_per_token),),
        block_format=f"openvino {openvino_version()} on {processor()}: {memory.layout}",
    )
