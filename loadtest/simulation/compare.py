"""The same requests under different ways to batch: the lesson of why servers batch in flight, as one command."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from rich.console import Console
from rich.table import Table

from loadtest.errors import WorkloadError
from loadtest.simulation.simulate import Setup, Simulation, simulate
from loadtest.slo import Slo
from loadtest.statistics import Spread
from loadtest.summary import summarise
from loadtest.table import milliseconds
from loadtest.workload import Workload
from server.scheduling.door import StaticBatches
from server.scheduling.policies import Policies

MODES = {
    "serial": "one request at a time",
    "static": "a batch at a time, until its longest answer is over",
    "inflight": "each comes and goes as it likes",
}


def parse_modes(text: str) -> list[str]:
    """Raises WorkloadError."""
    modes = text.split(",")
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise WorkloadError(f"--compare: {unknown[0]!r} is none of {', '.join(MODES)}")
    return modes


def simulate_mode(mode: str, workload: Workload, setup: Setup, policies: Policies | None = None) -> Simulation:
    """One run with this way to batch; everything else is equal. Raises what simulate() raises."""
    policies = policies or Policies()
    if mode == "serial":
        setup = msgspec.structs.replace(setup, config=replace(setup.config, max_sequences=1))
    elif mode == "static":
        seats = setup.config.max_sequences
        # A static batch computes its prompts together, however long they are.
        config = replace(setup.config, max_partial_prefills=seats)
        setup = msgspec.structs.replace(setup, config=config)
        policies = replace(policies, door=StaticBatches())
    return simulate(workload, setup, policies)


def print_comparison(console: Console, runs: dict[str, Simulation], slo: Slo | None) -> None:
    """One line a way to batch, times in milliseconds."""
    heads = ("TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "requests/s", "tokens/s", "busy", "keep the SLO")
    table = Table("", *heads, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for mode, run in runs.items():
        summary = summarise(run.result, slo)
        latencies, goodput = summary.total.latencies, summary.total.goodput
        table.add_row(
            mode,
            *_ends(latencies.ttft),
            *_ends(latencies.itl_token),
            f"{summary.request_rate:.2f}",
            f"{summary.output_tokens_per_second:.0f}",
            f"{run.account.utilisation:.0%}",
            "-" if goodput is None else f"{goodput.share:.1%}",
        )
    console.print(table)


def _ends(spread: Spread | None) -> tuple[str, str]:
    return ("-", "-") if spread is None else (milliseconds(spread.p50), milliseconds(spread.p99))
