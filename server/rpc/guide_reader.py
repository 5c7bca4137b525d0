"""Guides compiled off the event loop, one at a time, with a bound on what waits."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from engines.sampling.constraint import GuideError
from engines.sampling.guides import GuideCompiler
from engines.sampling.params import Guide
from server.errors import InvalidRequestError, OverloadedError, UnavailableError


class GuideReader:
    """Makes sure that a guide compiles before its request is queued. Event loop only."""

    def __init__(self, compiler: GuideCompiler | None, *, max_waiting: int, retry_after: float) -> None:
        """``compiler``: shared with the engine's sampler, which finds there what was compiled here; None where it has none.
        ``max_waiting`` bounds the guides being compiled or waiting for it."""
        self._compiler = compiler
        self._max_waiting = max_waiting
        self._retry_after = retry_after
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="guides")
        self._closed = False

    async def read(self, guide: Guide | None) -> None:
        """Raises InvalidRequestError, OverloadedError and UnavailableError. At once where the guide was compiled lately."""
        if guide is None or (self._compiler is not None and self._compiler.knows(guide)):
            return
        field = f"guide.{guide.kind}"
        if self._compiler is None:
            raise InvalidRequestError("guide", "this engine offers no structured output")
        if self._closed:
            raise UnavailableError("the server is shutting down")
        if self._waiting >= self._max_waiting:
            raise OverloadedError(
                f"guides.max_compiling: {self._waiting} guides wait to be compiled, the limit is {self._max_waiting}",
                reason="guides",
                retry_after=self._retry_after,
            )
        self._waiting += 1
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._compiler.check, guide)
        except GuideError as error:
            raise InvalidRequestError(field, str(error)) from error
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Drop what waits. Idempotent."""
        self._closed = True
        self._thread.shutdown(wait=True, cancel_futures=True)
