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
    PlanError,
    RunnerLimits,
    StepError,
    StepHandle,
    StepPlan,
    StepResult,
)
from engines.manifest import EngineManifest
from engines.openvino.kv_memory import KvMemory
from engines.openvino.layout import StepLayout, lay_out
from engines.openvino.logit_rows import LogitRows
from engines.openvino.plan_check import PlanCheck, check_blocks, check_copies, check_sequences
from engines.openvino.readout import read_out
from engines.openvino.staging import StepInputs
from engines.sampling.sampler import Sampler


@dataclass(frozen=True)
class LoadTimings:
    """Seconds that the parts of loading took."""

    read_seconds: float
    transform_seconds: float
    compile_seconds: float
    allocate_seconds: float


class OpenVinoStepRunner:
    """Implements engines.contract.StepRunner. Made by the loader."""

    def __init__(
        self,
        manifest: EngineManifest,
        compiled: ov.CompiledModel,
        memory: KvMemory,
        timings: LoadTimings,
        *,
        max_rows: int,
        max_step_tokens: int,
    ) -> None:
        self.manifest = manifest
        self.load_timings = timings
        self._limits = _limits(manifest, memory, max_rows, max_step_tokens)
        self._memory: KvMemory | None = memory
        self._request: ov.InferRequest | None = compiled.create_infer_request()
        memory.attach(self._request)
        self._inputs = StepInputs(self._request, self._limits)
        self._logits = LogitRows(self._request, max_rows, manifest.model.vocab_size)
        self._plan_check = PlanCheck(self._limits)
        self._sampler = Sampler(manifest.model.vocab_size)
        self._drawn: dict[int, int] = {}
        self._last_step: int | None = None
        self._in_flight: _Handle | None = None
        self._dead: str | None = None
        self._closing = Lock()

    @property
    def limits(self) -> RunnerLimits:
        return self._limits

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            batch_invariant=self.manifest.numerics.batch_invariant,
            preemption=True,
            score=True,
            masks=False,
            adapters=False,
            salts=True,
            block_io=True,
            immediate_cancel=True,
            lookahead=self._limits.max_step_tokens - 1,
        )

    # ------------------------------------------------------------------ steps

    def start(self, plan: StepPlan) -> StepHandle:
        request, memory = self._require_idle("start")
        if self._last_step is not None and plan.step <= self._last_step:
            raise PlanError(f"step: must be above {self._last_step}, the last one started, got {plan.step}")
        layout = self._checked(plan)
        for sequence in plan.closed:
            self._sampler.close(sequence)
        for spec in plan.opened:
            self._sampler.open(spec)
        self._last_step = plan.step
        memory.copy(plan.copies)
        if plan.rows:
            try:
                self._inputs.stage(layout)
                self._logits.expect(len(layout.wanted))
                request.start_async()
            except RuntimeError as error:
                self._die(f"a step could not be started: {error}", error)
        self._in_flight = _Handle(self, plan, layout, time.perf_counter())
        return self._in_flight

    def _checked(self, plan: StepPlan) -> StepLayout:
        """All checks, no change. Raises PlanError."""
        check_sequences(plan, self._sampler, self._limits)
        check_copies(plan, self._limits)
        layout = lay_out(plan, self._drawn, self._limits)
        if plan.rows:
            self._plan_check.check(plan, layout)
        return layout

    def _is_done(self, handle: _Handle) -> bool:
        request = self._request
        return handle is not self._in_flight or request is None or not handle.plan.rows or bool(request.wait_for(0))

    def _finish(self, handle: _Handle) -> StepResult:
        if handle is not self._in_flight:
            self._require_alive()
            raise PlanError(f"step {handle.plan.step}: its result was taken already")
        request, _ = self._require_alive()
        self._in_flight = None
        self._drawn = {}
        if not handle.plan.rows:
            return StepResult(handle.plan.step, [])
        try:
            request.wait()
        except RuntimeError as error:
            self._require_alive()
            raise StepError(f"step {handle.plan.step}: the library failed: {error}") from error
        waited = time.perf_counter()
        outputs = read_out(handle.plan.rows, handle.layout, self._logits.rows(), self._sampler)
        self._drawn = {output.sequence: output.tokens[-1] for output in outputs if output.tokens}
        sampled = time.perf_counter()
        return StepResult(handle.plan.step, outputs, waited - handle.started_at, sampled - waited)

    # ------------------------------------------------------------------ blocks

    def read_blocks(self, blocks: Sequence[int], group: int = 0) -> list[bytes]:
        _, memory = self._require_idle("read_blocks")
        self._check_block_io("read_blocks", blocks, group)
        return [memory.read(block) for block in blocks]

    def write_blocks(self, blocks: Sequence[int], contents: Sequence[bytes], group: int = 0) -> None:
        _, memory = self._require_idle("write_blocks")
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
        """From any thread. Waits for the library to let go of the memory; a result() that waits then raises EngineDeadError."""
        with self._closing:
            self._dead = self._dead or "closed"
            request, self._request = self._request, None
            if request is not None and self._in_flight is not None:
                _settle(request)
            self._memory = None

    def _require_alive(self) -> tuple[ov.InferRequest, KvMemory]:
        request, memory = self._request, self._memory
        if self._dead is not None or request is None or memory is None:
            raise EngineDeadError(f"openvino engine: {self._dead}")
        return request, memory

    def _require_idle(self, what: str) -> tuple[ov.InferRequest, KvMemory]:
        alive = self._require_alive()
        if self._in_flight is not None:
            raise PlanError(f"{what}: the result of step {self._in_flight.plan.step} is outstanding")
        return alive

    def _die(self, why: str, cause: Exception) -> None:
        self._dead = why
        raise EngineDeadError(f"openvino engine: {why}") from cause


class _Handle:
    """A started step of one runner."""

    __slots__ = ("_runner", "layout", "plan", "started_at")

    def __init__(self, runner: OpenVinoStepRunner, plan: StepPlan, layout: StepLayout, started_at: float) -> None:
        self._runner = runner
        self.plan = plan
        self.layout = layout
        self.started_at = started_at

    def done(self) -> bool:
        return self._runner._is_done(self)  # noqa: SLF001 - the handle is only the step's name; the runner holds it

    def result(self) -> StepResult:
        return self._runner._finish(self)  # noqa: SLF001 - as above


def _settle(request: ov.InferRequest) -> None:
    try:
        request.cancel()
        request.wait()
    except RuntimeError:
        return  # cancelled, or failed: either way it no longer runs


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
    )
