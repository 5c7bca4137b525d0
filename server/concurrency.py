"""Small tools of concurrency that asyncio does not have."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def start_daemon(work: Callable[[], T], name: str) -> Future[T]:
    """Run blocking ``work`` in a daemon thread of its own, which cannot keep the process from ending as asyncio's own threads do.

    Wait with ``asyncio.wrap_future``; a wait that is cancelled leaves the thread to itself.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


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


def into_loop(loop: asyncio.AbstractEventLoop, deliver: Callable[[list[T]], None]) -> Callable[[list[T]], None]:
    """One call from the engine thread per step, whatever the number of streams."""

    def hand_over(events: list[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to hear
            loop.call_soon_threadsafe(deliver, events)

    return hand_over


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``, but drop it when ``stop`` is set. Raises what it raises."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    elif not task.cancelled():
        task.result()
