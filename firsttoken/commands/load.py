"""`firsttoken load`: measure what a server carries."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadtest.capacity import Capacity, Probe
    from loadtest.console_run import ConsoleRun
    from loadtest.run import RunResult
    from loadtest.slo import Slo
    from loadtest.workload import Workload

HELP = "measure what a server carries, with the traffic that you expect"
PROBE_SECONDS = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    from loadtest.options import add_target_options, add_workload_options

    add_target_options(parser)
    add_workload_options(parser)
    group = parser.add_argument_group("how much it carries")
    group.add_argument("--slo", metavar="SLO", help="e.g. ttft=200ms,itl=50ms (also gap=, e2e=), or chat, rag, code")
    group.add_argument("--sweep", metavar="RATES", help="measure at each of these rates in turn, e.g. 1,2,4,8")
    group.add_argument(
        "--find-capacity", action="store_true", help="find the highest rate that meets --slo, starting at --rate"
    )
    group.add_argument(
        "--attainment", type=float, default=0.9, metavar="SHARE", help="of requests that must (%(default)s)"
    )
    group.add_argument(
        "--precision", type=float, default=0.1, metavar="X", help="how closely to bracket it (%(default)s)"
    )
    group = parser.add_argument_group("what to say")
    group.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    group.add_argument("--records", type=Path, metavar="FILE", help="write one JSON line per request")
    group.add_argument(
        "--report", type=Path, metavar="FILE", help="write a page with plots and conclusions (HTML, self-contained)"
    )
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
    from loadtest.console_run import ConsoleRun
    from loadtest.options import make_target
    from loadtest.slo import parse_slo
    from loadtest.summary import summarise

    slo = parse_slo(arguments.slo) if arguments.slo else None
    console = ConsoleRun(make_target(arguments), processes=arguments.processes, quiet=arguments.quiet)
    capacity = _measure(arguments, console, slo)
    if arguments.records is not None:
        write_records(arguments.records, console.results)
    if arguments.report is not None:
        from loadtest.report.page import build

        arguments.report.write_text(build(console.results, slo, capacity), encoding="utf-8")
    summaries = [summarise(result, slo) for result in console.results]
    _say(arguments, summaries, capacity)
    return 0 if any(summary.total.ok for summary in summaries) else 1


def _measure(arguments: argparse.Namespace, console: ConsoleRun, slo: Slo | None) -> Capacity | None:
    """One run, a sweep, or a search."""
    from loadtest.console_run import InterruptedRunError
    from loadtest.errors import WorkloadError
    from loadtest.options import make_workload
    from loadtest.sweep import parse_sweep, sweep

    if arguments.find_capacity and arguments.sweep:
        raise WorkloadError("--sweep and --find-capacity both choose the rates: give one")
    if arguments.find_capacity:
        return _search(arguments, console, slo)
    if arguments.sweep is None:
        console.measure(make_workload(arguments))
        return None
    rates = parse_sweep(arguments.sweep)
    arguments.rate = rates[0]
    with contextlib.suppress(InterruptedRunError):
        sweep(make_workload(arguments), rates, console.measure)
    return None


def _search(arguments: argparse.Namespace, console: ConsoleRun, slo: Slo | None) -> Capacity:
    from loadtest.capacity import Search, find_capacity
    from loadtest.errors import WorkloadError
    from loadtest.options import make_workload

    if slo is None:
        raise WorkloadError("--find-capacity: needs the --slo that must be met")
    if arguments.duration is None and arguments.requests is None:
        arguments.duration = PROBE_SECONDS
    arguments.rate = arguments.rate or 1.0
    workload: Workload = make_workload(arguments)
    search = Search(slo, arguments.attainment, arguments.rate, arguments.precision)

    def on_probe(probe: Probe, _result: RunResult) -> None:
        if not arguments.quiet:
            sys.stderr.write(f"{probe.rate:8.3f} requests/s: {probe.share:6.1%} of {sum(probe.counted)} keep {slo}\n")

    return find_capacity(workload, search, console.measure, on_probe)


def write_records(path: Path, results: Sequence[RunResult]) -> None:
    """One JSON line per request, warm-up included and marked; runs follow one another, numbered."""
    import msgspec

    from loadtest.record import to_wire

    with path.open("wb") as file:
        for number, result in enumerate(results):
            for record in result.records:
                line: dict[str, Any] = {"run": number} | msgspec.to_builtins(to_wire(record))
                file.write(msgspec.json.encode(line) + b"\n")


def _say(arguments: argparse.Namespace, summaries: Sequence[Any], capacity: Capacity | None) -> None:
    """Print the figures, as JSON or as tables."""
    import msgspec

    if arguments.json:
        several = capacity is not None or arguments.sweep is not None
        said: Any = {"points": summaries, "capacity": capacity} if several else summaries[0]
        sys.stdout.write(msgspec.json.encode(said).decode() + "\n")
        return
    from rich.console import Console

    from loadtest.table import print_capacity, print_points, print_summary

    console = Console()
    if len(summaries) == 1:
        print_summary(console, summaries[0])
    else:
        print_points(console, summaries)
    if capacity is not None:
        print_capacity(console, capacity)
