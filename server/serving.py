"""One engine at work: with its text stage, its streams, and who watches it. A swap makes a second one beside the first."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import structlog

from protos.firsttoken.v1 import generation_pb2 as pb
from server.concurrency import at_most, into_loop, start_daemon
from server.config import Config
from server.engine import Engine
from server.errors import ServerError
from server.loading import LoadedModel
from server.memory import give_back
from server.rpc.guide_reader import GuideReader
from server.rpc.limits import RequestLimits, request_limits
from server.rpc.opening import GenerationParts, output_text
from server.rpc.prompt_reader import PromptReader
from server.rpc.validation import check
from server.stream_registry import Names, StreamRegistry, watch_stalled
from server.streams import Observer, Unobserved
from server.text.tokenizer_pool import TokenizerPool
from server.warm_up import FIRST_PROMPT
from server.watchdog import EngineWatchdog

log = structlog.get_logger(__name__)


class Serving:
    """Event loop only."""

    def __init__(self, model: LoadedModel, config: Config, observer: Observer, names: Names) -> None:
        """``names``: the request ids that are alive, shared by all engines of the server."""
        admission = config.admission
        self.engine: Engine = model.engine
        self.registry = StreamRegistry(model.engine, observer, names=names)
        self.limits: RequestLimits = request_limits(config, model.engine.info)
        self._config = config
        self._pool = TokenizerPool(model.tokenizer, workers=config.text.threads)
        prompts = PromptReader(
            self._pool, model.template, max_bytes=admission.max_tokenizing_bytes, retry_after=admission.retry_after
        )
        self._guides = GuideReader(
            model.guides, max_waiting=config.guides.max_compiling, retry_after=admission.retry_after
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.parts = GenerationParts(
            model.engine.info, self.limits, self.registry, model.tokenizer, prompts, self._guides
        )

    def start(self, failed: Callable[[Serving, str], None]) -> None:
        """Start the engine. ``failed(self, why)`` is called once, when it dies or hangs."""
        self.engine.start(into_loop(asyncio.get_running_loop(), self.registry.deliver))
        watchdog = EngineWatchdog(self.engine, stuck_after=self._config.engine.stuck_after)
        self._background(watchdog.watch(lambda why: failed(self, why)))
        self._background(watch_stalled(self.registry, self._config.limits.reader_stall))

    async def try_out(self, tokens: int, patience: float) -> None:
        """Generate once, as a request would: tokenizer, admission, engine, stream, but no socket. For an engine that nobody sees yet.

        Raises ServerErrors, and TimeoutError after ``patience`` seconds.
        """
        asked = pb.GenerateRequest(prompt=pb.Prompt(text=FIRST_PROMPT), max_tokens=tokens)
        checked = check(asked, self.limits, self.engine.info)
        async with asyncio.timeout(patience):
            ids = await self.parts.prompts.read(checked.prompt)
            request = checked.build(
                ids,
                self.limits,
                self.engine.info,
                request_id=self.registry.new_id(),
                arrival=time.monotonic(),
                deadline=None,
            )
            stream = self.registry.open(request, [output_text(self.parts, checked, request)], Unobserved())
            try:
                while await stream.read():
                    pass
            finally:
                self.registry.close(stream)

    async def retire(self, patience: float) -> None:
        """Let who runs finish, then close. It must get no new requests any more."""
        await self.registry.idle()
        await self.close(patience)

    async def close(self, patience: float, *, keep: bool = False) -> None:
        """End the engine, which has ``patience`` seconds for its step, and, if it is to ``keep`` its cache, for saving that. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._pool.close()
        self._guides.close()
        engine = self.engine
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(
                asyncio.wrap_future(start_daemon(lambda: engine.close(patience, keep=keep), "engine-closer"))
            )

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))


class Servings:
    """The engine that new requests go to, and those before it that still have streams. Event loop only."""

    def __init__(self, patience: float) -> None:
        """``patience``: seconds that an engine which is swapped out has to close once its last stream is over."""
        self.current: Serving | None = None
        self._retiring: dict[Serving, asyncio.Task[None]] = {}
        self._patience = patience

    def __iter__(self) -> Iterator[Serving]:
        return iter([*self._retiring, *([self.current] if self.current is not None else [])])

    @property
    def readers(self) -> int:
        """Streams open on the wire."""
        return sum(serving.registry.readers for serving in self)

    def install(self, serving: Serving) -> None:
        before, self.current = self.current, serving
        if before is not None:
            self._retiring[before] = asyncio.get_running_loop().create_task(self._retire(before))

    async def idle(self) -> None:
        """Wait until nobody reads."""
        for serving in self:
            await serving.registry.idle()

    def end_all(self, error: ServerError, *, abandon: bool) -> None:
        """End every request that is not complete. ``abandon``: the engines will say nothing more."""
        for serving in self:
            (serving.registry.abandon_all if abandon else serving.registry.fail_all)(error)

    async def clear(self, grace: float, error: ServerError) -> None:
        """Close every engine: who runs has ``grace`` seconds to finish, and then ends with ``error``."""
        await at_most(grace, self.idle())
        self.end_all(error, abandon=False)
        await at_most(self._patience, self.idle())
        await self.close(self._patience)
        self._retiring.clear()
        self.current = None

    async def close(self, patience: float, *, keep: bool = False) -> None:
        """``keep``: the engine that serves may save its cache before."""
        retiring = list(self._retiring.items())
        for _, task in retiring:
            task.cancel()
        await asyncio.gather(*(task for _, task in retiring), return_exceptions=True)
        for serving in self:
            await serving.close(patience, keep=keep and serving is self.current)

    async def _retire(self, serving: Serving) -> None:
        await serving.retire(self._patience)
        del self._retiring[serving]
        # A whole engine has just become garbage; left to itself, Python looks at what is old only rarely.
        await asyncio.to_thread(give_back)
        log.info("the engine before is closed", model=serving.engine.info.model)
