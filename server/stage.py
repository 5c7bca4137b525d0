"""What the ports reach of the engine that serves: filled when one is installed, empty while there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from server.config import Config
from server.engine import EngineInfo
from server.errors import UnavailableError
from server.loading import LoadedModel
from server.memory import give_back
from server.readiness import Readiness, Slot, State
from server.rpc.kserve.models import ModelBook
from server.rpc.kserve.service import InferenceParts
from server.rpc.kserve.statistics import Statistics
from server.rpc.opening import GenerationParts
from server.rpc.operations import OperationsParts
from server.serving import Serving, Servings
from server.stream_registry import Names
from server.telemetry.metrics import Metrics
from server.telemetry.requests import RequestTelemetry
from server.version import server_version

ENGINE_CLOSE = 10.0
"""Seconds that the engine thread has to end its step and free its memory."""


class Stage:
    """Event loop only."""

    def __init__(self, config: Config, readiness: Readiness, metrics: Metrics, telemetry: RequestTelemetry) -> None:
        self.servings = Servings(ENGINE_CLOSE)
        self.generation: Slot[GenerationParts] = Slot()
        self.operations: Slot[OperationsParts] = Slot()
        self.inference: Slot[InferenceParts] = Slot()
        self.swap: Callable[[str, bool], Awaitable[EngineInfo]] | None = None
        """Serve another directory; None where this server cannot."""
        self._config = config
        self._readiness = readiness
        self._metrics = metrics
        self._telemetry = telemetry
        self._statistics = Statistics()
        self._names: Names = {}

    @property
    def open_streams(self) -> int:
        return self.servings.readers

    def make(self, model: LoadedModel) -> Serving:
        """What can serve ``model``; nobody sees it yet."""
        return Serving(model, self._config, self._telemetry, self._names)

    def install(self, serving: Serving) -> None:
        """New requests go to ``serving`` from now on; the one before lets its own finish."""
        self.servings.install(serving)
        engine = serving.engine
        self._metrics.watch_engine(engine.info, engine.stats, server_version())
        self.generation.fill(serving.parts)
        self.operations.fill(
            OperationsParts(engine, serving.limits, lambda: self.open_streams, serving.registry.abort, self.swap)
        )
        models = ModelBook(engine.info.model)
        self._statistics.serve(models.kinds)
        self.inference.fill(InferenceParts(models, self._statistics, engine.stats))
        if self._readiness.state is State.REPLACING:
            self._readiness.become(State.READY)

    async def vacate(self) -> None:
        """Close what serves, so that its memory is free: who runs may finish within the grace of a drain, who comes is told to come back.

        Raises UnavailableError where the server is about to shut down.
        """
        if not self._readiness.become(State.REPLACING):
            raise UnavailableError("the server is shutting down")
        gone = UnavailableError("the engine is being replaced", retry_after=1.0)
        await self.servings.clear(self._config.lifecycle.drain_grace, gone)
        for slot in (self.generation, self.operations, self.inference):
            slot.empty()
        await asyncio.to_thread(give_back)
