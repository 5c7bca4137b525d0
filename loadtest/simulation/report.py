"""A simulation's page: the load report's, with what only the scheduler can tell."""

from __future__ import annotations

from html import escape

from loadtest.report.page import build as build_page
from loadtest.simulation.compare import MODES
from loadtest.simulation.simulate import Account, Setup, Simulation
from loadtest.slo import Slo
from loadtest.summary import summarise
from loadtest.table import milliseconds


def build(runs: dict[str, Simulation], setup: Setup, slo: Slo | None) -> str:
    """One self-contained HTML page; the last of ``runs`` in detail, the others beside it."""
    last = list(runs.values())[-1]
    notes = f"<p class=soft>{escape(setup.profile.name)}: {escape(setup.profile.source)}</p>"
    notes += "".join(f"<p>{escape(line)}</p>" for line in account_lines(last.account))
    if len(runs) > 1:
        notes += _comparison(runs, slo)
    return build_page([last.result], slo, title="firsttoken simulate", notes=notes)


def account_lines(account: Account) -> list[str]:
    """What the scheduler tells, in words."""
    refused = ", ".join(f"{count} {reason}" for reason, count in sorted(account.rejections.items())) or "none"
    cached = f"{account.hit_rate:.1%} of prompt tokens from the prefix cache"
    busy = f"{account.steps} steps in {account.virtual_seconds:.1f} s, the engine busy {account.utilisation:.1%} of it"
    lost = f"{account.preemptions} preemptions, {account.discarded_tokens} tokens discarded"
    lines = [f"scheduler: {busy}; {cached}; {lost}", f"rejections by reason: {refused}"]
    if account.forecast_error is not None:
        lines.append(f"first tokens were predicted within {account.forecast_error:.0%} at the median")
    return lines


def _comparison(runs: dict[str, Simulation], slo: Slo | None) -> str:
    rows = "".join(_row(mode, run, slo) for mode, run in runs.items())
    heads = "".join(
        f"<th>{head}</th>" for head in ("", "TTFT p50", "TTFT p99", "ITL p99", "requests/s", "keep the SLO")
    )
    return f"<h2>Ways to batch, times in ms</h2><div class=scroll><table><tr>{heads}</tr>{rows}</table></div>"


def _row(mode: str, run: Simulation, slo: Slo | None) -> str:
    summary = summarise(run.result, slo)
    ttft, itl, goodput = summary.total.latencies.ttft, summary.total.latencies.itl_token, summary.total.goodput
    cells = (
        f"{mode}: {MODES[mode]}",
        *(("-", "-") if ttft is None else (milliseconds(ttft.p50), milliseconds(ttft.p99))),
        "-" if itl is None else milliseconds(itl.p99),
        f"{summary.request_rate:.2f}",
        "-" if goodput is None else f"{goodput.share:.1%}",
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
