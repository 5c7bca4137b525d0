"""Another engine in the place of the one that serves, without a pause: loaded and tried out beside it, then new requests move over.

Whatever goes wrong before that moment changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future

import structlog

from engines.contract import EngineError
from server.config import Config, LifecycleConfig
from server.engine import EngineInfo
from server.errors import PreconditionError, ServerError
from server.loading import LoadedModel
from server.serving import Serving

log = structlog.get_logger(__name__)

CLOSE = 10.0
"""Seconds that an engine which nobody will use has to close."""
Load = Callable[[Config], Future[LoadedModel]]
"""Begins to load what a configuration names, in a thread of its own; preflight and the memory bill are its part."""


class EngineSwap:
    """One swap at a time. Event loop only."""

    def __init__(
        self,
        config: Config,
        load: Load,
        make: Callable[[LoadedModel], Serving],
        failed: Callable[[Serving, str], None],
        install: Callable[[Serving], None],
    ) -> None:
        """``make`` builds what serves; ``install`` lets new requests in to it, and must not fail."""
        self._config = config
        self._load = load
        self._make = make
        self._failed = failed
        self._install = install
        self._task: asyncio.Task[EngineInfo] | None = None

    async def to(self, directory: str) -> EngineInfo:
        """Serve ``directory`` from now on. Goes on where its caller gives up. Raises PreconditionError."""
        if self._task is not None and not self._task.done():
            raise PreconditionError("directory: another engine is just being loaded")
        self._task = asyncio.get_running_loop().create_task(self._run(directory))
        return await asyncio.shield(self._task)

    def cancel(self) -> None:
        """The server shuts down. A load that runs ends in its thread, and is never used."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, directory: str) -> EngineInfo:
        began = time.monotonic()
        engine = self._config.engine.model_copy(update={"directory": directory})
        log.info("loading another engine", directory=directory)
        try:
            model = await asyncio.wrap_future(self._load(self._config.model_copy(update={"engine": engine})))
        except (EngineError, OSError, ValueError) as error:
            raise _refused(directory, error) from error
        serving = self._make(model)
        serving.start(self._failed)
        await self._try_out(serving, directory)
        self._install(serving)
        info = model.engine.info
        log.info("swapped", directory=directory, model=info.model, seconds=round(time.monotonic() - began, 3))
        return info

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
    return PreconditionError(f"directory: cannot serve {directory!r}: {why}; the engine that serves stays")
