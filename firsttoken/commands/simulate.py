"""`firsttoken simulate`: the real scheduler against a simulated engine, in virtual time."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firsttoken.command_line import CommandParser

if TYPE_CHECKING:
    from loadtest.simulation.simulate import Setup, Simulation
    from loadtest.slo import Slo
    from server.config import Config

HELP = "replay traffic against the real scheduler and a simulated engine, in virtual time"
NOTE = """
Every --scheduler.KNOB and --admission.KNOB of `firsttoken serve` may be given, and means here what it means there.
Equal options and seeds give equal figures, to the last digit.
"""
DEFAULT_PROFILE = "h100-8b-tp1"


def run_raw(argv: Sequence[str]) -> int:
    """Exit status: 0, 1 where nothing was answered, 2 for what the user must change."""
    from loadtest.errors import LoadError
    from server.config_sources import ConfigError, load_config, parse_flags

    try:
        knobs, rest = parse_flags(argv)
        arguments = _parser().parse_args(rest)
        return _run(arguments, load_config(None, {}, knobs).config, knobs)
    except (LoadError, ConfigError, ValueError) as error:
        sys.stderr.write(f"firsttoken simulate: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    from loadtest.options import add_workload_options
    from loadtest.simulation.profile import PROFILES
    from loadtest.simulation.simulate import ENGINES

    parser = CommandParser(prog="firsttoken simulate", description=HELP[0].upper() + HELP[1:], epilog=NOTE)
    add_workload_options(parser)
    group = parser.add_argument_group("what serves them")
    group.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        help=f"{', '.join(PROFILES)}, a JSON file, or a built engine's directory (default: %(default)s)",
    )
    group.add_argument(
        "--engine",
        choices=ENGINES,
        default="steps",
        help="steps: our batcher, an engine of which only the time is simulated; oracle: one that checks every block it "
        "reads; executor: one that batches by itself (default: %(default)s)",
    )
    group.add_argument(
        "--no-admission", action="store_true", help="let everybody in, however many wait and however late"
    )
    group.add_argument(
        "--max-tokens", type=int, metavar="N", help="what clients ask for; default: exactly the answer's length"
    )
    group.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="WHAT@STEP",
        help="error@N, die@N or slow@N:SECONDS, N counted in steps; repeatable",
    )
    group.add_argument("--compare", metavar="MODES", help="the same requests under serial,static,inflight")
    _add_output_options(parser)
    return parser


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to say")
    group.add_argument("--slo", metavar="SLO", help="e.g. ttft=200ms,itl=50ms (also gap=, e2e=), or chat, rag, code")
    group.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    group.add_argument(
        "--report", type=Path, metavar="FILE", help="write a page with plots and conclusions (HTML, self-contained)"
    )


def _run(arguments: argparse.Namespace, config: Config, knobs: Container[str]) -> int:
    from loadtest.options import make_workload
    from loadtest.simulation.compare import parse_modes, simulate_mode
    from loadtest.slo import parse_slo

    slo = parse_slo(arguments.slo) if arguments.slo else None
    workload, setup = make_workload(arguments), _setup(arguments, config, knobs)
    modes = parse_modes(arguments.compare) if arguments.compare else ["inflight"]
    runs = {mode: simulate_mode(mode, workload, setup) for mode in modes}
    if arguments.report is not None:
        from loadtest.simulation.report import build

        arguments.report.write_text(build(runs, setup, slo), encoding="utf-8")
    _say(arguments, runs, setup, slo)
    return 0 if any(record.ok for run in runs.values() for record in run.result.records) else 1


def _setup(arguments: argparse.Namespace, config: Config, knobs: Container[str]) -> Setup:
    """``knobs``: those that were given; a step is otherwise as large as the profile's engine allows."""
    from loadtest.simulation.profile import read_profile
    from loadtest.simulation.simulate import Setup
    from server.scheduling.admission import Admission
    from server.scheduling.config import BatcherConfig

    caps, profile = config.admission, read_profile(arguments.profile)
    scheduler = config.scheduler.model_dump()
    if "scheduler.step_tokens" not in knobs:
        scheduler["step_tokens"] = profile.max_step_tokens
    admission = Admission(max_waiting_requests=caps.max_waiting_requests, max_waiting_tokens=caps.max_waiting_tokens)
    return Setup(
        profile=profile,
        config=BatcherConfig(**scheduler),
        admission=None if arguments.no_admission else admission,
        forecast=not arguments.no_admission,
        engine=arguments.engine,
        max_tokens=arguments.max_tokens,
        faults=tuple(arguments.fault),
        check=True,
    )


def _say(arguments: argparse.Namespace, runs: dict[str, Simulation], setup: Setup, slo: Slo | None) -> None:
    """Print the figures, as JSON or as tables."""
    import msgspec

    from loadtest.summary import summarise

    if arguments.json:
        said = {
            mode: {"figures": summarise(run.result, slo), "scheduler": run.account, "profile": setup.profile}
            for mode, run in runs.items()
        }
        sys.stdout.write(msgspec.json.encode(said if arguments.compare else said["inflight"]).decode() + "\n")
        return
    from rich.console import Console

    from loadtest.simulation.compare import print_comparison
    from loadtest.simulation.report import account_lines
    from loadtest.table import print_summary

    console = Console()
    console.print(f"profile {setup.profile.name}: {setup.profile.source}", highlight=False)
    if arguments.compare:
        print_comparison(console, runs, slo)
        return
    run = runs["inflight"]
    print_summary(console, summarise(run.result, slo))
    for line in account_lines(run.account):
        console.print(line, highlight=False)
