"""The compiled model with everything that it reads and writes: the one place that calls the library while steps run."""

from __future__ import annotations

import openvino as ov

from engines.contract import RunnerLimits
from engines.openvino.kv_memory import KvMemory
from engines.openvino.layout import StepLayout
from engines.openvino.logit_rows import LogitRows
from engines.openvino.staging import StepInputs
from engines.sampling.thresholds import Logits


class ModelSession:
    """One request over one KV memory. Errors of the library are RuntimeErrors. For one thread, except settle()."""

    def __init__(self, compiled: ov.CompiledModel, memory: KvMemory, limits: RunnerLimits) -> None:
        self.memory = memory
        self._request = compiled.create_infer_request()
        memory.attach(self._request)
        self._inputs = StepInputs(self._request, limits)
        self._logits = LogitRows(self._request, limits.max_rows, limits.vocab_size)

    def start(self, layout: StepLayout) -> None:
        """Stage a checked layout of at least one row and start the model; returns at once."""
        self._inputs.stage(layout)
        self._logits.expect(len(layout.wanted))
        self._request.start_async()

    def is_done(self) -> bool:
        return bool(self._request.wait_for(0))

    def wait(self) -> float:
        """Until the step has ended; other threads run meanwhile. The seconds that the model took, whenever it is asked for."""
        self._request.wait()
        return float(self._request.latency) / 1e3

    def logits(self) -> Logits:
        """[wanted rows, vocabulary] of the step that ended last; the next one overwrites them."""
        return self._logits.rows()

    def settle(self) -> None:
        """From any thread: cancel what runs and wait until the library no longer touches the memory."""
        try:
            self._request.cancel()
            self._request.wait()
        except RuntimeError:
            return  # never started, cancelled, or failed: whichever it is, nothing runs
