"""`firsttoken load`: measure what a server carries."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadtest.run import RunResult
    from loadtest.summary import Summary
    from loadtest.transports.base import Target
    from loadtest.workload import Workload

HELP = "measure what a server carries, with the traffic that you expect"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    from loadtest.options import add_target_options, add_workload_options

    add_target_options(parser)
    add_workload_options(parser)
    group = parser.add_argument_group("what to say")
    group.add_argument(
        "--slo", metavar="SLO", help="e.g. ttft=200ms,itl=50ms (also gap=, e2e=), or chat, rag, code: report goodput"
    )
    group.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    group.add_argument("--records", type=Path, metavar="FILE", help="write one JSON line per request")
    group.add_argument("--quiet", action="store_true", help="show no progress")


def run(arguments: argparse.Namespace) -> int:
    """Exit status: 0, 1 where nothing was answered, 2 for what the user must change."""
    from loadtest.errors import LoadError

    try:
        return _run(arguments)
    except LoadError as error:
        sys.stderr.write(f"firsttoken load: {error}\n")
        return 2


def _run(arguments: argparse.Namespace) -> int:
    from loadtest.options import make_target, make_workload
    from loadtest.slo import parse_slo
    from loadtest.summary import summarise

    slo = parse_slo(arguments.slo) if arguments.slo else None
    target, workload = make_target(arguments), make_workload(arguments)
    result = asyncio.run(_measure(workload, target, arguments))
    if arguments.records is not None:
        write_records(arguments.records, result)
    summary = summarise(result, slo)
    say(arguments, summary)
    return 0 if summary.total.ok else 1


async def _measure(workload: Workload, target: Target, arguments: argparse.Namespace) -> RunResult:
    """Run it; the first Ctrl-C ends it early and keeps what was measured."""
    from loadtest.display import Display
    from loadtest.run import Run

    with Display(workload.duration, silent=arguments.quiet) as display:
        run = Run(workload, target, processes=arguments.processes, on_update=display.on_update)
        loop = asyncio.get_running_loop()
        stops: list[asyncio.Task[None]] = []
        loop.add_signal_handler(signal.SIGINT, lambda: stops.append(loop.create_task(run.stop())))
        try:
            return await run.execute()
        finally:
            loop.remove_signal_handler(signal.SIGINT)


def write_records(path: Path, result: RunResult) -> None:
    """One JSON line per request, warm-up included and marked."""
    import msgspec

    from loadtest.record import to_wire

    with path.open("wb") as file:
        for record in result.records:
            file.write(msgspec.json.encode(to_wire(record)) + b"\n")


def say(arguments: argparse.Namespace, summary: Summary) -> None:
    """Print the figures, as JSON or as tables."""
    import msgspec

    if arguments.json:
        sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
        return
    from rich.console import Console

    from loadtest.table import print_summary

    print_summary(Console(), summary)
