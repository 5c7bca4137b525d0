"""The compiled model with everything that it reads and writes: the one place that calls the library while steps run.

Weights of four or eight bits make the step of one token fast, because it waits for memory; in a step of many tokens each
product waits for their widening to bfloat16 instead. An engine may therefore hold its matrices in both forms, over the same
keys and values, and each step runs in the form that is faster for its number of tokens. Such an engine compiles its codes twice: once
for steps of one token alone, whose shapes are then fixed (engines/openvino/graph.py), as one stream is what most people wait at.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec
import openvino as ov

from engines.contract import Row, RunnerLimits, Sample, StepPlan
from engines.openvino.kv_memory import KvMemory
from engines.openvino.layout import StepLayout, lay_out
from engines.openvino.logit_rows import LogitRows
from engines.openvino.staging import StepInputs
from engines.sampling.thresholds import Logits

WIDE_FROM = 3
"""New tokens of a step from which the wide form is the faster one. `python -m benchmarks.step_widths`: on two cores with AVX-512 BF16
it takes 1.3 to 1.7 of the narrow one's time below that, 0.94 to 1.17 at three tokens, 0.76 to 0.99 above."""


class ModelSession:
    """One request for each form of the weights, over one KV memory. Errors of the library are RuntimeErrors. For one thread, except
    settle()."""

    def __init__(self, forms: Sequence[ov.CompiledModel], memory: KvMemory, limits: RunnerLimits) -> None:
        """``forms``: the model that runs all steps; or that for steps of one token, that for others below WIDE_FROM, and that for the rest."""
        self.memory = memory
        most = [1, WIDE_FROM - 1, limits.max_step_tokens][-len(forms) :]
        self._forms = [_Form(model, memory, _up_to(tokens, limits)) for model, tokens in zip(forms, most, strict=True)]
        self._running = self._forms[-1]

    def start(self, layout: StepLayout) -> None:
        """Stage a checked layout of at least one row and start the model; returns at once."""
        self._running = self._form_of(len(layout.tokens))
        self._running.start(layout)

    def _form_of(self, tokens: int) -> _Form:
        if len(self._forms) == 1 or tokens >= WIDE_FROM:
            return self._forms[-1]
        return self._forms[0 if tokens == 1 else 1]

    def is_done(self) -> bool:
        return bool(self._running.request.wait_for(0))

    def wait(self) -> float:
        """Until the step has ended; other threads run meanwhile. The seconds that the model took, whenever it is asked for."""
        self._running.request.wait()
        return float(self._running.request.latency) / 1e3

    def logits(self) -> Logits:
        """[wanted rows, vocabulary] of the step that ended last; the next one overwrites them."""
        return self._running.logits.rows()

    def settle(self) -> None:
        """From any thread: cancel what runs and wait until the library no longer touches the memory."""
        for form in self._forms:
            form.settle()


def _up_to(tokens: int, limits: RunnerLimits) -> RunnerLimits:
    """Of steps of at most so many tokens."""
    few = min(tokens, limits.max_step_tokens)
    return msgspec.structs.replace(limits, max_rows=min(few, limits.max_rows), max_step_tokens=few)


class _Form:
    """A compiled model's request with inputs and logits of its own: what the library keeps between steps is never shared."""

    __slots__ = ("inputs", "logits", "request")

    def __init__(self, compiled: ov.CompiledModel, memory: KvMemory, limits: RunnerLimits) -> None:
        self.request = compiled.create_infer_request()
        memory.attach(self.request)
        self.inputs = StepInputs(self.request, limits)
        self.logits = LogitRows(self.request, limits.max_rows, limits.vocab_size)

    def start(self, layout: StepLayout) -> None:
        self.inputs.stage(layout)
        self.logits.expect(len(layout.wanted))
        self.request.start_async()

    def settle(self) -> None:
        try:
            self.request.cancel()
            self.request.wait()
        except RuntimeError:
            return  # never started, cancelled, or failed: whichever it is, nothing runs


def rehearsal(compiled: ov.CompiledModel, memory: KvMemory, tokens: int) -> None:
    """One step of ``tokens`` tokens, at most a block's, in a request of its own; the results are lost. Raises RuntimeError."""
    limits = RunnerLimits(
        vocab_size=int(list(compiled.outputs[0].get_partial_shape())[-1].get_length()),
        block_size=memory.block_size,
        block_count=memory.block_count,
        bytes_per_block=memory.bytes_per_block,
        max_rows=1,
        max_step_tokens=tokens,
        max_context=memory.block_size,
        kv_groups=(),
    )
    row = Row(0, array("i", bytes(4 * tokens)), 0, (array("i", [0]),), Sample())
    form = _Form(compiled, memory, limits)
    form.start(lay_out(StepPlan(0, [row]), {}, limits))
    form.request.wait()
