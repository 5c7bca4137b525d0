"""A run's figures as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from loadtest.capacity import Capacity
from loadtest.conclusions import conclude
from loadtest.statistics import Spread
from loadtest.summary import Group, Summary

LATENCY_ROWS = (
    ("time to first token", "ttft"),
    ("inter-token, per message", "itl_message"),
    ("inter-token, per token", "itl_token"),
    ("time per output token", "tpot"),
    ("whole request", "e2e"),
    ("waiting on the server", "queued"),
)


def milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _row(table: Table, name: str, spread: Spread | None) -> None:
    if spread is not None:
        numbers = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)
        table.add_row(name, f"{spread.count}", *(milliseconds(number) for number in numbers))


def latency_table(title: str, group: Group) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("milliseconds")
    for head in ("count", "mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(head, justify="right")
    for name, field in LATENCY_ROWS:
        _row(table, name, getattr(group.latencies, field))
    return table


def totals_table(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("measured", f"{summary.seconds:.1f}", "s")
    table.add_row("offered", f"{summary.offered_rate:.2f}", "requests/s")
    table.add_row("served", f"{summary.request_rate:.2f}", "requests/s")
    table.add_row("output", f"{summary.output_tokens_per_second:.1f}", "tokens/s")
    table.add_row("prompts", f"{summary.prompt_tokens_per_second:.1f}", "tokens/s")
    table.add_row("on their way", f"{summary.concurrency:.1f}", "requests, mean")
    if summary.cached_share is not None:
        table.add_row("from the prefix cache", f"{summary.cached_share:.1%}", "of prompt tokens")
    if (goodput := summary.total.goodput) is not None:
        text = f"of requests keep {goodput.slo} (95 % interval {goodput.share_low:.1%} to {goodput.share_high:.1%}); {goodput.rate:.2f} requests/s"
        table.add_row("goodput", f"{goodput.share:.1%}", text)
    return table


def statuses_line(group: Group) -> str:
    parts = [f"{count} {status}" for status, count in sorted(group.statuses.items(), key=lambda pair: -pair[1])]
    return "requests: " + ", ".join(parts)


def print_summary(console: Console, summary: Summary) -> None:
    """Totals, latencies, each class where there are several, and the conclusion."""
    facts = summary.facts
    server = " ".join(part for part in (facts.model, facts.engine and f"({facts.engine})") if part)
    console.print(f"[bold]{summary.address}[/bold] {server}, {summary.wire}, {summary.began}")
    console.print(totals_table(summary))
    given_up = f"; given up by the clients themselves: {summary.given_up}" if summary.given_up else ""
    early = f"; {summary.early_ends} answers ended before their planned length" if summary.early_ends else ""
    console.print(statuses_line(summary.total) + given_up + early, highlight=False)
    console.print(latency_table("", summary.total))
    if len(summary.classes) > 1:
        for name, group in summary.classes.items():
            console.print(latency_table(f"class {name}: {statuses_line(group)}", group))
    if (lag := summary.lag) is not None:
        share = max((client.processor_share for client in summary.clients), default=0.0)
        console.print(
            f"client: sent {milliseconds(lag.p50)} ms late at the median, {milliseconds(lag.p99)} ms at p99; "
            f"busiest process {share:.0%} of a core"
        )
    conclusion = conclude(summary)
    console.print(f"[bold]{conclusion.bound.value}[/bold]: {' '.join(conclusion.sentences)}", highlight=False)


def print_points(console: Console, summaries: Sequence[Summary]) -> None:
    """A sweep: one line a rate. Rates are requests per second, latencies milliseconds."""
    table = Table(box=None, pad_edge=False)
    for head in ("offered", "served", "tokens/s", "TTFT p50", "p99", "ITL p50", "p99", "SLO"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    for summary in sorted(summaries, key=lambda each: each.offered_rate):
        latencies, goodput = summary.total.latencies, summary.total.goodput
        cells = [
            milliseconds(getattr(spread, share)) if spread is not None else "-"
            for spread in (latencies.ttft, latencies.itl_token)
            for share in ("p50", "p99")
        ]
        table.add_row(
            f"{summary.offered_rate:.2f}",
            f"{summary.request_rate:.2f}",
            f"{summary.output_tokens_per_second:.0f}",
            *cells,
            f"{goodput.share:.1%}" if goodput is not None else "-",
            conclude(summary).bound.value,
        )
    console.print(table)


def print_capacity(console: Console, capacity: Capacity) -> None:
    low, high = capacity.headroom_rates
    bound = "" if capacity.bracketed else " (only a bound: the search saw no rate on its other side)"
    console.print(
        f"[bold]{capacity.rate:.2f} requests/s[/bold] keep {capacity.slo} for {capacity.attainment:.0%} of requests; "
        f"95 % interval {capacity.low:.2f} to {capacity.high:.2f}{bound}. Plan for {low:.2f} to {high:.2f}.",
        highlight=False,
    )
