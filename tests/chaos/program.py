"""The server under fire: `firsttoken serve` as it is, with a socket beside it by which faults are thrown and the books are read.

Run as ``python -m tests.chaos.program SOCKET [serve's arguments]``. A request is one line of JSON, ``{"do": "fail"}``, an answer is one line.
The product is not replaced anywhere: the simulated engines know of faults anyway, and what wraps the product's methods only looks.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import psutil

Json: TypeAlias = dict[str, Any]
LOOK_EVERY = 50
"""Turns of the engine between two looks at its books; a look takes milliseconds."""


class Instruments:
    """What is known of the process beyond what the product says of itself."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        """Laws that did not hold, as the code that found out said it."""
        self.open: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        """Requests by registry, from their submission to their one RequestFinished."""
        self.library_fails = False
        """The embedded engine's next step fails."""
        self.disk_full = False
        """No file of a saved cache can grow."""
        self.looks = 0

    def install(self) -> None:
        self._fill_disk()
        self._count_ends()
        self._look_at_books()

    def fail_library_steps(self) -> None:
        """Once OpenVINO is there: a step of its that was told to fail does, when its time is over."""
        from engines.openvino.session import ModelSession

        wait = ModelSession.wait

        def failing(session: ModelSession) -> float:
            seconds = wait(session)
            if self.library_fails:
                self.library_fails = False
                raise RuntimeError("failed on purpose")
            return seconds

        wrap(ModelSession, "wait", failing)

    def _fill_disk(self) -> None:
        from server.saved_cache import layout, writer

        encode = layout.encode_block

        def without_room(block: layout.SavedBlock) -> bytes:
            if self.disk_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return encode(block)

        wrap(writer, "encode_block", without_room)

    def _count_ends(self) -> None:
        from server.engine import RequestFinished
        from server.stream_registry import StreamRegistry

        open_stream, deliver = StreamRegistry.open, StreamRegistry.deliver

        def counted_open(registry: StreamRegistry, request: Any, *rest: Any, **options: Any) -> Any:
            stream = open_stream(registry, request, *rest, **options)
            self.open.setdefault(registry, set()).add(request.id)
            return stream

        def counted_deliver(registry: StreamRegistry, events: list[Any]) -> None:
            alive = self.open.setdefault(registry, set())
            for event in events:
                if type(event) is RequestFinished and event.request not in alive:
                    self.broken.append(f"request {event.request} ended a second time: {event.reason}")
                elif event.request not in alive:
                    self.broken.append(f"request {event.request}: {type(event).__name__} after its end")
                if type(event) is RequestFinished:
                    alive.discard(event.request)
            deliver(registry, events)

        wrap(StreamRegistry, "open", counted_open)
        wrap(StreamRegistry, "deliver", counted_deliver)

    def _look_at_books(self) -> None:
        """On the engine's own thread, between two steps, as the law asks for it."""
        from server.engine_loop import StepEngine
        from server.executor_loop import ExecutorEngine

        def looking(turn: Callable[[Any], None], stores: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], None]:
            def look(engine: Any) -> None:
                turn(engine)
                self.looks += 1
                if self.looks % LOOK_EVERY == 0:
                    self.check(*stores(engine))

            return look

        wrap(StepEngine, "_turn", looking(StepEngine._turn, lambda engine: (engine._batcher, engine._runner)))
        wrap(ExecutorEngine, "_turn", looking(ExecutorEngine._turn, lambda engine: (engine._feed,)))

    def check(self, *stores: Any) -> None:
        for store in stores:
            try:
                store.check_integrity()
            except Exception as error:  # noqa: BLE001 - reported, and the storm goes on
                self.broken.append(f"{type(store).__name__}: {error}")


def wrap(owner: object, name: str, wrapper: Callable[..., Any]) -> None:
    setattr(owner, name, wrapper)


class Control:
    """Answers at the socket, in the server's own event loop."""

    def __init__(self, instruments: Instruments, app: Any) -> None:
        self._instruments = instruments
        self._app = app
        self._process = psutil.Process()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        result = getattr(self, f"_{asked['do']}")()
        writer.write(json.dumps(result).encode() + b"\n")
        await writer.drain()
        writer.close()

    def _fail(self) -> Json:
        """The next step fails; where there is no engine, none does."""
        engine = self._engine()
        if (faults := _faults_of(engine)) is not None:
            faults.fail_next_step()
        elif engine is not None:
            self._instruments.library_fails = True
        return {}

    def _hang(self) -> Json:
        """The next step never ends. Simulated engines only."""
        _faults_of(self._engine()).hang()
        return {}

    def _fill(self) -> Json:
        """From now on the disk is full for whoever saves a cache."""
        self._instruments.disk_full = True
        return {}

    def _free(self) -> Json:
        self._instruments.disk_full = False
        return {}

    def _engine(self) -> Any:
        """What serves; None while it is being replaced."""
        serving = self._app._servings.current
        return None if serving is None else serving.engine

    def _inspect(self) -> Json:
        """What the process holds. Threads, tasks and files by what they are, so that a leak names itself."""
        gc.collect()
        instruments, app = self._instruments, self._app
        servings = list(app._servings)
        instruments.check(app._gate.quotas, *(serving.registry for serving in servings))
        broken, instruments.broken = instruments.broken, []
        return {
            "broken": broken,
            "looks": instruments.looks // LOOK_EVERY,
            "engines": len(servings),
            "alive": sum(len(alive) for alive in instruments.open.values()),
            "streams": sum(len(serving.registry) for serving in servings),
            "tasks": Counter(_task_name(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()),
            "threads": Counter(_thread_name(thread) for thread in threading.enumerate()),
            "native_threads": self._process.num_threads(),
            "files": Counter(_file_name(path) for path in Path("/proc/self/fd").iterdir()),
            "rss": self._process.memory_info().rss,
        }


def _faults_of(engine: Any) -> Any:
    """None where it is no simulated one."""
    return getattr(getattr(engine, "_runner", None) or getattr(engine, "_executor", None), "faults", None)


def _task_name(task: asyncio.Task[Any]) -> str:
    coroutine: Any = task.get_coro()
    return str(getattr(coroutine, "__qualname__", coroutine))


def _thread_name(thread: threading.Thread) -> str:
    return thread.name.rstrip("0123456789")


def _file_name(path: Path) -> str:
    try:
        target = str(path.readlink())
    except OSError:
        return "the folder being read"
    return target.partition(":[")[0] if ":[" in target else target


def main() -> int:
    """Serve until told to stop; the exit status is serve's."""
    path, arguments = sys.argv[1], sys.argv[2:]
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before gRPC is imported: each rude connection would be a line
    from firsttoken.commands.serve import run_raw
    from server.app import App

    instruments = Instruments()
    instruments.install()
    if not any(argument.startswith("simulated") for argument in arguments):
        instruments.fail_library_steps()
    run = App.run

    async def controlled(app: App) -> int:
        async with await asyncio.start_unix_server(Control(instruments, app).answer, path):
            return await run(app)

    wrap(App, "run", controlled)
    return run_raw(arguments)


if __name__ == "__main__":
    sys.exit(main())
