"""What came of requests on this wire, by model. Counters only grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from protos.inference import grpc_service_pb2 as wire
from server.rpc.kserve.models import VERSION
from server.streams import Stream

_NANOSECONDS = 10**9


@dataclass(slots=True)
class _Duration:
    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += max(0, int(seconds * _NANOSECONDS))

    def message(self) -> wire.StatisticDuration:
        return wire.StatisticDuration(count=self.count, ns=self.ns)


@dataclass(slots=True)
class _Model:
    last_ms: int = 0
    success: _Duration = field(default_factory=_Duration)
    fail: _Duration = field(default_factory=_Duration)
    queue: _Duration = field(default_factory=_Duration)
    compute_input: _Duration = field(default_factory=_Duration)
    compute_infer: _Duration = field(default_factory=_Duration)
    compute_output: _Duration = field(default_factory=_Duration)


class Statistics:
    """Event loop only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._models: dict[str, _Model] = {}
        self._clock = clock

    def serve(self, names: Iterable[str]) -> None:
        """These are the models from now on; what is known of one stays, so that counters grow through a swap of engines."""
        for name in names:
            self._models.setdefault(name, _Model())

    def succeeded(self, name: str, stream: Stream, opened: float) -> None:
        """``opened``: when the request was handed to the engine."""
        model, request, end = self._models[name], stream.request, stream.finished
        if end is None:
            return
        now, timings = self._clock(), end.timings
        queued = timings.queued or 0.0
        model.last_ms = int(time.time() * 1000)
        model.success.add(now - request.arrival)
        model.compute_input.add(opened - request.arrival)
        model.queue.add(max(0.0, request.arrival + queued - opened))
        model.compute_infer.add(timings.total - queued)
        model.compute_output.add(now - request.arrival - timings.total)

    def failed(self, name: str, arrival: float) -> None:
        """Refused, failed or cancelled."""
        model = self._models.get(name)
        if model is not None:
            model.last_ms = int(time.time() * 1000)
            model.fail.add(self._clock() - arrival)

    def message(self, name: str, executions: int) -> wire.ModelStatistics:
        """``executions``: the engine's steps, which serve all models' requests together."""
        model = self._models[name]
        return wire.ModelStatistics(
            name=name,
            version=VERSION,
            last_inference=model.last_ms,
            inference_count=model.success.count,
            execution_count=executions,
            inference_stats=wire.InferStatistics(
                success=model.success.message(),
                fail=model.fail.message(),
                queue=model.queue.message(),
                compute_input=model.compute_input.message(),
                compute_infer=model.compute_infer.message(),
                compute_output=model.compute_output.message(),
            ),
        )
