"""Another engine in the place of the one that serves, without a pause: loaded and tried out beside it, then new requests move over.

Whatever goes wrong before that moment changes nothing. Where memory does not hold both, the old one is closed first, and comes back if the new
one cannot be loaded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import structlog

from engines.contract import EngineError, EngineMemoryError
from server.concurrency import start_daemon
from server.config import Config, LifecycleConfig
from server.engine import EngineInfo
from server.errors import PreconditionError, ServerError
from server.loading import LoadedModel
from server.serving import Serving
from server.stage import Stage

log = structlog.get_logger(__name__)

CLOSE = 10.0
"""Seconds that an engine which nobody will use has to close."""
Load = Callable[[Config], Future[LoadedModel]]
"""Begins to load what a configuration names, in a thread of its own; preflight and the memory bill are its part."""


def _no_check(_: Config) -> None:
    pass


@dataclass(frozen=True)
class EngineSource:
    """How further engines are loaded."""

    load: Load
    check: Callable[[Config], None] = _no_check
    """Blocking, and quick: raises what ``load`` would raise without reading a weight. Asked before the one that serves is given up."""


class EngineSwap:
    """One swap at a time. Event loop only."""

    def __init__(
        self,
        config: Config,
        source: EngineSource,
        stage: Stage,
        failed: Callable[[Serving, str], None],
        give_up: Callable[[str], None],
    ) -> None:
        """``failed(serving, why)`` hears of an engine that dies, ``give_up(why)`` that there is no engine any more."""
        self._config = config
        self._directory = config.engine.directory
        self._source = source
        self._stage = stage
        self._failed = failed
        self._give_up = give_up
        self._task: asyncio.Task[EngineInfo] | None = None

    async def to(self, directory: str, replace: bool = False) -> EngineInfo:
        """Serve ``directory`` from now on; ``replace``: close what serves first. Goes on where its caller gives up.

        Raises PreconditionError.
        """
        if self._task is not None and not self._task.done():
            raise PreconditionError("directory: another engine is just being loaded")
        self._task = asyncio.get_running_loop().create_task(self._run(directory, replace=replace))
        return await asyncio.shield(self._task)

    def cancel(self) -> None:
        """The server shuts down. A load that runs ends in its thread, and is never used."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, directory: str, *, replace: bool) -> EngineInfo:
        began = time.monotonic()
        log.info("loading another engine", directory=directory, replace=replace)
        if replace:
            await self._check(directory)
            await self._stage.vacate()
            serving = await self._bring_up_or_go_back(directory)
        else:
            serving = await self._bring_up(directory)
        self._stage.install(serving)
        self._directory = directory
        info = serving.engine.info
        log.info("swapped", directory=directory, model=info.model, seconds=round(time.monotonic() - began, 3))
        return info

    def _config_for(self, directory: str) -> Config:
        engine = self._config.engine.model_copy(update={"directory": directory})
        return self._config.model_copy(update={"engine": engine})

    async def _check(self, directory: str) -> None:
        config, check = self._config_for(directory), self._source.check
        try:
            await asyncio.wrap_future(start_daemon(lambda: check(config), "engine-check"))
        except (EngineError, OSError, ValueError) as error:
            raise _refused(directory, error) from error

    async def _bring_up(self, directory: str) -> Serving:
        """Load and try out. Raises PreconditionError, and then nothing is left of it."""
        try:
            model = await asyncio.wrap_future(self._source.load(self._config_for(directory)))
        except (EngineError, OSError, ValueError) as error:
            raise _refused(directory, error) from error
        serving = self._stage.make(model)
        serving.start(self._failed)
        await self._try_out(serving, directory)
        return serving

    async def _bring_up_or_go_back(self, directory: str) -> Serving:
        """The old engine is closed already: where the new one fails, it is loaded again."""
        try:
            return await self._bring_up(directory)
        except PreconditionError as error:
            log.warning("loading the engine before again", directory=self._directory)
            try:
                self._stage.install(await self._bring_up(self._directory))
            except PreconditionError as worse:
                self._give_up(f"no engine is left: {error}; {worse}")
            raise

    async def _try_out(self, serving: Serving, directory: str) -> None:
        lifecycle: LifecycleConfig = self._config.lifecycle
        try:
            await serving.try_out(lifecycle.warm_up_tokens, lifecycle.warm_up_timeout)
        except BaseException as error:
            await serving.close(CLOSE)
            if isinstance(error, ServerError | TimeoutError):
                raise _refused(directory, error) from error
            raise


def _refused(directory: str, error: BaseException) -> PreconditionError:
    why = str(error) or type(error).__name__
    log.error("cannot swap, the engine stays", directory=directory, why=why)
    hint = " (`--replace` closes it first)" if isinstance(error, EngineMemoryError) else ""
    return PreconditionError(f"directory: cannot serve {directory!r}: {why}; the engine before stays{hint}")
