"""Starts the ranks, watches them, drains them, and leaves no process behind. It serves nothing and touches no GPU."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from server.phases import Phases
from server.ranks.members import Members
from server.ranks.messages import Drain, Fail
from server.ranks.output import RankOutput
from server.ranks.parent import die_with_parent

log = structlog.get_logger(__name__)

LAST_WORDS = 1.5
"""Seconds that the leader has to end its streams once another rank has gone."""
FINALIZE = 10.0
"""Seconds that the ranks have to leave MPI after the leader has ended in order."""
REAP = 3.0
"""Seconds that killed processes have to be gone."""


@dataclass(frozen=True)
class Job:
    """``command(socket)``: the command line that starts ``world_size`` ranks."""

    world_size: int
    command: Callable[[str], Sequence[str]]
    start_timeout: float
    """Seconds from the start until every rank has its weights."""
    drain_timeout: float
    """Seconds from a drain to the leader's end; longer means that it hangs."""


class Supervisor:
    """One job, once. Event loop of the main thread only: its children die with the thread that forks them."""

    def __init__(self, job: Job, explain: Callable[[list[str]], str | None]) -> None:
        """``explain``: what the ranks' last lines mean, where somebody knows."""
        self._job = job
        self._explain = explain
        self._phases = Phases()
        self._outputs = [RankOutput(_writer(sys.stdout.fileno())), RankOutput(_writer(sys.stderr.fileno()))]

    @property
    def _draining(self) -> bool:
        return self._drain_asked.is_set()

    async def run(self) -> int:
        """The exit status: the leader's own where it ended by itself, 1 where the job broke."""
        self._phases.since_exec("preflight")
        self._members = Members(self._job.world_size)
        self._drain_asked = asyncio.Event()
        with tempfile.TemporaryDirectory(prefix="firsttoken-") as folder, self._signals():
            address = str(Path(folder) / "ranks")
            server = await asyncio.start_unix_server(self._members.welcome, address)
            try:
                process = await self._start(address)
            except OSError as error:
                log.error("cannot start the ranks", why=str(error))  # noqa: TRY400 - written for operators
                return 1
            pumps = [asyncio.ensure_future(pump) for pump in self._pumps(process)]
            timing = [asyncio.ensure_future(phase) for phase in self._timed_phases()]
            try:
                return await self._watch(process)
            finally:
                for phase in timing:
                    phase.cancel()
                await self._bury(process)
                await asyncio.wait(pumps, timeout=1.0)
                server.close()

    async def _start(self, address: str) -> Process:
        command = self._job.command(address)
        log.info("starting ranks", count=self._job.world_size, command=" ".join(command))
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for the supervisor alone
            # Should this process be killed, mpirun is told to end the ranks: nobody else could.
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )

    async def _watch(self, process: Process) -> int:
        """Until the leader has ended, or the job is broken."""
        exited = asyncio.ensure_future(process.wait())
        loaded = asyncio.ensure_future(self._members.loaded.wait())
        ended, lost = self._members.ended, self._members.lost
        ends: set[asyncio.Future[Any]] = {ended, lost, exited}
        await asyncio.wait({loaded, *ends}, timeout=self._job.start_timeout, return_when=asyncio.FIRST_COMPLETED)
        if loaded.done():
            await self._until_one(ends)
        loaded.cancel()
        if ended.done():
            return await self._after_leader(ended.result(), exited)
        if self._draining and not loaded.done():
            return 0  # told to stop before anything was served: killing what still loads loses nothing
        if lost.done():
            return await self._broken(lost.result())
        if exited.done():
            return await self._broken(f"mpirun has ended with status {exited.result()}")
        timeout = self._job.start_timeout
        return await self._broken(
            f"not loaded after {timeout:g} s (engine.rank_start_timeout): {self._members.progress()}"
        )

    async def _until_one(self, ends: set[asyncio.Future[Any]]) -> None:
        """Wait for the first of ``ends``; once a drain was asked for, not for ever."""
        drained = asyncio.ensure_future(self._drain_asked.wait())
        await asyncio.wait({drained, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if drained.done():
            await asyncio.wait(ends, timeout=self._job.drain_timeout, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()

    async def _after_leader(self, status: int, exited: asyncio.Future[int]) -> int:
        """The others leave with it; who does not is killed."""
        in_order = status == 0 and self._members.loaded.is_set()
        await asyncio.wait({exited}, timeout=FINALIZE if in_order else LAST_WORDS)
        if status:
            self._say_why("the leader ended with a failure")
        elif in_order and not exited.done():
            log.warning("ranks did not leave by themselves", seconds=FINALIZE, ranks=self._members.progress())
        return status

    async def _broken(self, why: str) -> int:
        """The leader ends its streams with a status, then everything is killed."""
        log.error("the job is broken", why=why, ranks=self._members.progress())
        self._members.tell_leader(Fail(why))
        await asyncio.wait({self._members.ended}, timeout=LAST_WORDS)
        self._say_why(why)
        return 1

    def _say_why(self, why: str) -> None:
        lines = [line for output in self._outputs for line in output.lines]
        if (meaning := self._explain(lines)) is not None:
            log.error("what it means", why=why, cause=meaning)

    async def _bury(self, process: Process) -> None:
        self._members.kill()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # never terminate(): that is mpirun's signal to kill ranks, which are dead or leaving
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), REAP)

    def _pumps(self, process: Process) -> list[Coroutine[Any, Any, None]]:
        streams = zip(self._outputs, (process.stdout, process.stderr), strict=True)
        return [output.pump(stream) for output, stream in streams if stream is not None]

    def _timed_phases(self) -> list[Coroutine[Any, Any, None]]:
        """What a start consists of, said as each part ends: mpirun until every rank is there, the ranks until all have their weights.

        The leader, which imports the server while the library loads, says its own parts.
        """
        began = time.perf_counter()

        async def timed(phase: str, over: asyncio.Event) -> None:
            await over.wait()
            self._phases.record(phase, time.perf_counter() - began)

        return [timed("ranks_joined", self._members.joined), timed("ranks_loaded", self._members.loaded)]

    def _drain(self) -> None:
        log.info("draining", again=self._draining, ranks=self._members.progress())
        self._drain_asked.set()
        self._members.tell_leader(Drain())

    @contextlib.contextmanager
    def _signals(self) -> Any:  # noqa: ANN401 - a context
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._drain)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def _writer(descriptor: int) -> Callable[[bytes], object]:
    """Writes all of it, without Python's buffers between."""

    def write(text: bytes) -> None:
        stream = open(descriptor, "wb", buffering=0, closefd=False)  # noqa: SIM115 - a descriptor, not a path
        view = memoryview(text)
        while view:
            view = view[stream.write(view) :]

    return write
