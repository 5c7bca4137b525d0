"""The server's life: start, serve, shut down. The only place that constructs and knows all the parts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

import structlog

from engines.contract import EngineError
from server.concurrency import at_most, first_of, run_until
from server.config import Config
from server.engine import Engine
from server.errors import UnavailableError
from server.event_loop import name_of
from server.http import HttpPort
from server.loading import LoadedModel
from server.phases import Phases
from server.post_mortem import leave_behind, post_mortem
from server.readiness import Readiness, State
from server.rpc.gate import Gate
from server.rpc.generation import GenerationService
from server.rpc.kserve.service import InferenceService
from server.rpc.opening import Opener
from server.rpc.operations import OperationsService
from server.rpc.port import GrpcPort, address_of
from server.serving import Serving
from server.stage import ENGINE_CLOSE, Stage
from server.stream_registry import StreamRegistry
from server.swap import EngineSource, EngineSwap
from server.telemetry.metrics import Metrics
from server.telemetry.probes import Probes
from server.telemetry.requests import RequestTelemetry
from server.version import server_version
from server.warm_up import WarmUpError, warm_up

log = structlog.get_logger(__name__)

LAST_WORDS = 2.0
"""Seconds that handlers have to send their statuses once everything was ended."""


class App:
    """One server in one event loop. ``run`` is its whole life; it returns the process's exit status."""

    def __init__(
        self,
        config: Config,
        loading: Future[LoadedModel],
        phases: Phases,
        trouble: Future[str] | None = None,
        engines: EngineSource | None = None,
    ) -> None:
        """``loading`` began before this module was even imported: the engine compiles meanwhile. ``trouble`` resolves with why the
        server cannot go on, where others than itself can know. ``engines`` loads further engines; None: there will be no other."""
        self._config = config
        self._loading = loading
        self._phases = phases
        self._trouble = trouble
        self._metrics = Metrics()
        self._probes = Probes(self._metrics)
        self._readiness = Readiness()
        self._telemetry = RequestTelemetry(self._metrics, config.telemetry)
        self._stage = Stage(config, self._readiness, self._metrics, self._telemetry)
        self._gate: Gate | None = None
        self._grpc: GrpcPort | None = None
        self._http: HttpPort | None = None
        self._servings = self._stage.servings
        self._swap = EngineSwap(config, engines, self._stage, self._engine_failed, self._fail) if engines else None
        self._stage.swap = None if self._swap is None else self._swap.to
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: str | None = None
        self.grpc_port = 0
        self.http_port = 0

    @property
    def readiness(self) -> Readiness:
        return self._readiness

    async def run(self) -> int:
        """Start, serve until a signal or a failure, shut down. 0 after an orderly end."""
        with self._signals():
            self._heed_trouble()
            self._phases.since_exec("import")
            for exposure in self._config.exposures():
                log.warning("exposed", why=exposure)
            try:
                with self._phases.measure("ports"):
                    await self._open_ports()  # a signal waits for it: a port that is half open could not be closed
                await run_until(self._stop, self._start())
                if self._failure is None and not self._stop.is_set():
                    await self._stop.wait()
            except (OSError, ValueError, EngineError, WarmUpError) as error:
                log.error("cannot start", why=str(error))  # noqa: TRY400 - written for operators; a traceback says less
                self._fail(str(error))
            except Exception as error:
                log.exception("cannot start")
                self._fail(str(error))
            return await self._shut_down()

    def request_stop(self) -> None:
        """Begin to drain; asked a second time, end at once. Event loop only."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    # ------------------------------------------------------------------ start

    async def _start(self) -> None:
        model = await asyncio.wrap_future(self._loading)
        self._wire(model)
        if self._config.lifecycle.warm_up:
            with self._phases.measure("warm_up"):
                await self._warm_up()
        if self._grpc is not None:
            self._grpc.close_own_target()
        self._tune_interpreter()
        self._readiness.become(State.READY)
        self._phases.since_exec("ready")
        for phase, seconds in self._phases.seconds.items():
            self._metrics.startup.labels(phase).set(seconds)
        log.info(
            "serving",
            model=model.engine.info.model,
            grpc_port=self.grpc_port,
            http_port=self.http_port,
            event_loop=name_of(asyncio.get_running_loop()),
        )

    async def _open_ports(self) -> None:
        """Before the engine is loaded: a taken port is known at once, and probes get an answer while it loads."""
        self._telemetry.open(server_version())
        gate = self._gate = Gate(self._config, self._readiness, self._metrics)
        opener = Opener(self._stage.generation, self._readiness, self._telemetry, gate.quotas)
        generation = GenerationService(opener, gate.warm_up)
        operations = OperationsService(
            self._stage.operations, self._readiness, self._telemetry.patience, opener, gate.directory.named
        )
        self._metrics.watch_server(lambda: self._readiness.ready, self._open_streams)
        inference = InferenceService(self._stage.inference, opener, self._readiness, server_version())
        grpc_port = GrpcPort(
            self._config.grpc,
            self._readiness,
            generation=generation,
            operations=operations,
            inference=inference,
            interceptors=gate.interceptors(self._count_call),
            certificates=gate.certificates,
        )
        self.grpc_port = await grpc_port.start()
        self._grpc = grpc_port
        for files in gate.watched():
            self._background(files.watch())
        log.info("listening", protocol="grpc", address=address_of(self._config.grpc, self.grpc_port))
        if self._config.http.enabled:
            self._http = HttpPort(self._config.http, self._readiness, self._metrics)
            self.http_port = await self._http.start()
            log.info("listening", protocol="http", address=f"{self._config.http.host}:{self.http_port}")

    def _wire(self, model: LoadedModel) -> None:
        self._telemetry.record(model.engine.info.block_size)
        first = self._stage.make(model)
        first.start(self._engine_failed)
        self._stage.install(first)

    async def _warm_up(self) -> None:
        lifecycle, grpc_port, gate = self._config.lifecycle, self._grpc, self._gate
        if grpc_port is None or gate is None:
            raise WarmUpError("the ports are not open")
        tokens = await warm_up(
            grpc_port.own_target,
            gate.warm_up.secret,
            tokens=lifecycle.warm_up_tokens,
            timeout=lifecycle.warm_up_timeout,
        )
        log.info("warmed up", tokens=tokens)

    def _tune_interpreter(self) -> None:
        """Trade throughput of Python threads for latency.

        A garbage collection walks all that was ever imported and stops every thread; what lives now lives as long as the
        server, so it is set aside for good. A shorter switch interval lets the event loop in sooner while the engine thread
        computes in Python.
        """
        gc.collect()
        gc.freeze()
        self._probes.start()
        sys.setswitchinterval(self._config.lifecycle.switch_interval)

    # ------------------------------------------------------------------ shut down

    async def _shut_down(self) -> int:
        """Read from top to bottom, this is what a rolling update sees."""
        if self._swap is not None:
            self._swap.cancel()
        if self._failure is None:
            await self._drain()
        # Whoever is still here gets a status that says why.
        why = UnavailableError(self._failure or "the server is shutting down", retry_after=1.0)
        self._servings.end_all(why, abandon=self._failure is not None)
        await at_most(LAST_WORDS, self._servings.idle())
        if self._grpc is not None:
            # Until the last status is out: cut off, it would read CANCELLED.
            await self._grpc.stop(0.2 if self._failure or self._hurry.is_set() else LAST_WORDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._telemetry.close(LAST_WORDS)
        await self._probes.close()
        await self._close_engines()
        # Last, so that the final state can still be scraped.
        if self._http is not None:
            await self._http.close()
        log.info("stopped", orderly=self._failure is None and not self._hurry.is_set(), failure=self._failure)
        return 0 if self._failure is None and not self._hurry.is_set() else 1

    async def _close_engines(self) -> None:
        """An orderly end has time to save the cache, until somebody hurries."""
        if self._failure is not None or self._hurry.is_set():
            await self._servings.close(0.0 if self._failure else ENGINE_CLOSE)
            return
        cache = self._config.cache
        patience = ENGINE_CLOSE + (cache.save_timeout if cache.save_path else 0.0)
        await first_of(patience, self._servings.close(patience, keep=True), self._hurry.wait())

    async def _drain(self) -> None:
        lifecycle = self._config.lifecycle
        log.info("draining", delay=lifecycle.drain_delay, grace=lifecycle.drain_grace, streams=self._open_streams())
        # Not ready for load balancers first; what they still send is served until they have looked.
        if self._readiness.become(State.CLOSING):
            await at_most(lifecycle.drain_delay, self._hurry.wait())
        # Then nothing new, and those who run may finish at their own pace.
        self._readiness.become(State.DRAINING)
        if self._grpc is not None:
            self._background(self._grpc.stop(lifecycle.drain_grace + LAST_WORDS))
        await first_of(lifecycle.drain_grace, self._servings.idle(), self._hurry.wait())

    # ------------------------------------------------------------------ failures

    def _engine_failed(self, serving: Serving | None, why: str) -> None:
        log.error("engine failed", why=why)
        if serving is not None:
            leave_behind(post_mortem(serving.engine, why), self._config.telemetry.crash_directory)
        if serving is None or serving is self._servings.current:
            self._fail(why)
        else:  # not the one that serves: its own streams end, and nobody else's
            serving.registry.abandon_all(UnavailableError(why, retry_after=1.0))

    def _heed_trouble(self) -> None:
        if self._trouble is not None:
            loop = asyncio.get_running_loop()
            self._trouble.add_done_callback(
                lambda why: loop.call_soon_threadsafe(self._engine_failed, self._servings.current, why.result())
            )

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._readiness.become(State.FAILED)
        self._stop.set()

    # ------------------------------------------------------------------ small parts

    def _open_streams(self) -> int:
        return self._servings.readers

    @property
    def _engine(self) -> Engine | None:
        return self._servings.current.engine if self._servings.current is not None else None

    @property
    def _registry(self) -> StreamRegistry | None:
        return self._servings.current.registry if self._servings.current is not None else None

    def _count_call(self, method: str, code: str) -> None:
        self._metrics.rpcs.labels(method.lstrip("/"), code).inc()

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.request_stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
