"""A run: client processes started together, their records gathered. The one entry for whoever wants a load made."""

from __future__ import annotations

import asyncio
import datetime as dt
import sys
import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from loadtest import errors
from loadtest.channel import Done, Failed, FromWorker, Job, Ready, Start, Update, pack, read_body
from loadtest.client_health import ClientHealth
from loadtest.errors import LoadError, WorkerError
from loadtest.progress import Snapshot
from loadtest.record import RequestRecord, from_wire
from loadtest.transports.base import LoadSample, Target, TargetFacts
from loadtest.workload import Workload

START_AHEAD = 0.3
"""Seconds from telling the processes to the first moment of the run."""

OnUpdate: TypeAlias = Callable[[float, Snapshot, LoadSample | None], None]


class Sample(msgspec.Struct, frozen=True):
    at: float
    """Seconds after the run's start."""
    load: LoadSample


class RunResult(msgspec.Struct):
    """Everything that was seen. ``records`` are sorted by sending time."""

    workload: Workload
    target: Target
    facts: TargetFacts
    began: str
    """UTC, ISO 8601."""
    records: list[RequestRecord]
    samples: list[Sample]
    health: list[ClientHealth]


class _Process:
    """One client process and the pipe to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def spawn(cls, job: Job) -> _Process:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "loadtest.worker", stdin=pipe, stdout=pipe, start_new_session=True
        )
        made = cls(process)
        made.send(pack(job))
        return made

    def send(self, message: bytes) -> None:
        if self._process.stdin is None:
            raise WorkerError("a client process without a pipe")
        self._process.stdin.write(message)

    async def receive(self) -> FromWorker:
        """The next message. Raises the LoadError that the process reports, or WorkerError where it died."""
        if self._process.stdout is None:
            raise WorkerError("a client process without a pipe")
        body = await read_body(self._process.stdout)
        if body is None:
            raise WorkerError(f"a client process ended with exit code {await self._process.wait()}")
        message: FromWorker = msgspec.msgpack.decode(body, type=FromWorker)
        if isinstance(message, Failed):
            kind = getattr(errors, message.kind, WorkerError)
            raise kind(message.message)
        return message

    async def end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 5.0)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def _ignore(_at: float, _snapshot: Snapshot, _load: LoadSample | None) -> None:
    """Nobody watches."""


class Run:
    """One run; :meth:`execute` once. ``processes`` client processes share the workload evenly."""

    def __init__(
        self, workload: Workload, target: Target, *, processes: int = 1, on_update: OnUpdate = _ignore
    ) -> None:
        self._workload, self._target = workload, target
        self._count = processes
        self._on_update = on_update
        self._records: list[RequestRecord] = []
        self._samples: list[Sample] = []
        self._stopping = False

    async def execute(self) -> RunResult:
        """Raises LoadError. :meth:`stop`, from another task, ends it early with what there is."""
        self._workload.check()
        began = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        jobs = [Job(self._workload, self._target, share, self._count) for share in range(self._count)]
        self._processes = [await _Process.spawn(job) for job in jobs]
        try:
            facts = [await self._ready(process) for process in self._processes]
            start = pack(Start(time.monotonic() + START_AHEAD))
            for process in self._processes:
                process.send(start)
            health = await asyncio.gather(*(self._follow(process) for process in self._processes))
        finally:
            await asyncio.gather(*(process.end() for process in self._processes))
        self._records.sort(key=lambda record: record.sent)
        return RunResult(self._workload, self._target, facts[0], began, self._records, self._samples, list(health))

    async def stop(self) -> None:
        """End the run now; requests on their way are forgotten."""
        self._stopping = True
        await asyncio.gather(*(process.end() for process in self._processes))

    async def _ready(self, process: _Process) -> TargetFacts:
        message = await process.receive()
        if not isinstance(message, Ready):
            raise WorkerError(f"a client process said {type(message).__name__} before it was ready")
        return message.facts

    async def _follow(self, process: _Process) -> ClientHealth:
        while True:
            message = await process.receive()
            if isinstance(message, Done):
                return message.health
            if isinstance(message, Update):
                self._records += [from_wire(wire) for wire in message.records]
                if message.load is not None:
                    self._samples.append(Sample(message.at, message.load))
                self._on_update(message.at, message.snapshot, message.load)


def run_load(workload: Workload, target: Target, *, processes: int = 1, on_update: OnUpdate = _ignore) -> RunResult:
    """As Run.execute, for callers without an event loop. Raises LoadError."""
    return asyncio.run(Run(workload, target, processes=processes, on_update=on_update).execute())


__all__ = ["LoadError", "OnUpdate", "Run", "RunResult", "Sample", "run_load"]
