"""Runs as a person at a terminal sees them: progress on standard error, Ctrl-C ends a run and keeps what was measured."""

from __future__ import annotations

import asyncio
import signal

from loadtest.display import Display
from loadtest.errors import LoadError
from loadtest.run import Run, RunResult
from loadtest.transports.base import Target
from loadtest.workload import Workload


class InterruptedRunError(LoadError):
    """Ctrl-C ended the run before this one."""


class ConsoleRun:
    """Measures workloads against one target, one after the other."""

    def __init__(self, target: Target, *, processes: int, quiet: bool) -> None:
        self._target = target
        self._processes = processes
        self._quiet = quiet
        self._interrupted = False
        self.results: list[RunResult] = []

    def measure(self, workload: Workload) -> RunResult:
        """Run it. Raises LoadError; InterruptedRunError where an earlier run was interrupted."""
        if self._interrupted:
            raise InterruptedRunError("interrupted")
        result = asyncio.run(self._measure(workload))
        self.results.append(result)
        return result

    async def _measure(self, workload: Workload) -> RunResult:
        with Display(workload.duration, silent=self._quiet) as display:
            run = Run(workload, self._target, processes=self._processes, on_update=display.on_update)
            loop = asyncio.get_running_loop()
            stops: list[asyncio.Task[None]] = []

            def stop() -> None:
                self._interrupted = True
                stops.append(loop.create_task(run.stop()))

            loop.add_signal_handler(signal.SIGINT, stop)
            try:
                return await run.execute()
            finally:
                loop.remove_signal_handler(signal.SIGINT)
