"""Small tools of concurrency that asyncio does not have."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """Run blocking ``work`` in a daemon thread and wait for it. Cancelled, this returns at once and leaves the thread to itself;
    unlike asyncio's own threads it cannot keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # None only where T allows it

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as caught:  # noqa: BLE001 - handed to whoever waits
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


async def at_most(seconds: float, work: Coroutine[Any, Any, object]) -> None:
    """Wait for ``work``, and cancel it after ``seconds``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


async def first_of(seconds: float, *works: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of ``works``, at most ``seconds``; cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
