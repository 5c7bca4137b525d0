"""The page itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources

import msgspec

from loadtest.capacity import Capacity
from loadtest.conclusions import Conclusion, conclude
from loadtest.report import figures
from loadtest.report.plot import Plot
from loadtest.run import RunResult
from loadtest.slo import Slo
from loadtest.summary import Group, Summary, summarise
from loadtest.table import LATENCY_ROWS, milliseconds, statuses_line

HEADS = ("count", "mean", "p50", "p90", "p95", "p99", "max")
UNKNOWN = "-"
DEFAULT_ATTAINMENT = 0.9


def build(
    results: Sequence[RunResult],
    slo: Slo | None = None,
    capacity: Capacity | None = None,
    *,
    title: str = "firsttoken load",
    notes: str = "",
) -> str:
    """The report on one run, a sweep or a search. The run shown in detail is the fastest that kept the SLO, else the last.

    ``notes`` is HTML that follows the conclusion: what whoever made the run knows beside its records."""
    points = [summarise(result, slo) for result in results]
    place = detailed(points, capacity.attainment if capacity is not None else DEFAULT_ATTAINMENT)
    summary, result = points[place], results[place]
    sections = [
        _head(summary, title),
        _conclusion(conclude(points[-1] if capacity is None else summary), capacity, points),
        _tiles(summary),
        notes,
        _plots("Over load", figures.over_load(points, capacity)),
        _points_table(points),
        _rates_note(points, summary),
        _latencies("Latency", summary.total),
        _plots("Distributions", figures.distributions(result, slo.bounds if slo else {})),
        _plots("Over time", figures.timeline(result)),
        *(_latencies(f"Class {name}: {statuses_line(group)}", group) for name, group in _several(summary.classes)),
        _plots("By class", figures.by_class(result)),
        _client(summary),
        f"<h2>What was asked</h2><pre>{escape(_pretty(result))}</pre>",
    ]
    style = resources.files("loadtest.report").joinpath("page.css").read_text()
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}: {escape(summary.address)}</title><style>{style}</style></head>"
        f"<body>{''.join(sections)}</body></html>"
    )


def detailed(points: Sequence[Summary], attainment: float) -> int:
    """Which run to show in detail: the fastest that kept the SLO, or the last."""
    kept = [
        place
        for place, each in enumerate(points)
        if each.total.goodput is not None and each.total.goodput.share >= attainment
    ]
    return max(kept, key=lambda place: points[place].offered_rate) if kept else len(points) - 1


def _several(classes: dict[str, Group]) -> list[tuple[str, Group]]:
    return list(classes.items()) if len(classes) > 1 else []


def _head(summary: Summary, title: str) -> str:
    facts = summary.facts
    server = " · ".join(part for part in (facts.model, facts.engine, summary.wire) if part)
    return f"<h1>{escape(summary.address)}</h1><p class=soft>{escape(server)} · {escape(summary.began)} · {escape(title)}</p>"


def _conclusion(conclusion: Conclusion, capacity: Capacity | None, points: Sequence[Summary]) -> str:
    words = [escape(sentence) for sentence in conclusion.sentences]
    title = conclusion.bound.value
    if capacity is not None:
        low, high = capacity.headroom_rates
        title = f"{capacity.rate:.2f} requests/s ({capacity.low:.2f} to {capacity.high:.2f}), {title}"
        edge = "" if capacity.bracketed else " This is only a bound: the search saw no rate on its other side."
        words.insert(
            0,
            f"{capacity.attainment:.0%} of requests keep {escape(capacity.slo)} up to this rate (95 % interval in brackets).{edge} "
            f"Queues explode near the limit: plan for {low:.2f} to {high:.2f} requests/s.",
        )
    ordered = sorted(points, key=lambda each: each.offered_rate)
    if capacity is None and (place := figures.knee_of(ordered)) is not None:
        rate = ordered[place].offered_rate
        words.append(f"The latency turns upwards at {rate:.2f} requests/s; plan for half to seven tenths of that.")
    return f'<div class="conclusion {conclusion.bound.value}"><b>{escape(title)}</b>{" ".join(words)}</div>'


def _tiles(summary: Summary) -> str:
    latencies = summary.total.latencies
    tiles = [
        (f"{summary.request_rate:.2f}", "requests/s served"),
        (f"{summary.output_tokens_per_second:.0f}", "output tokens/s"),
        (f"{milliseconds(latencies.ttft.p50)} ms" if latencies.ttft else UNKNOWN, "first token, median"),
        (f"{milliseconds(latencies.ttft.p99)} ms" if latencies.ttft else UNKNOWN, "first token, p99"),
        (f"{milliseconds(latencies.itl_token.p50)} ms" if latencies.itl_token else UNKNOWN, "per token, median"),
        (f"{milliseconds(latencies.itl_token.p99)} ms" if latencies.itl_token else UNKNOWN, "per token, p99"),
    ]
    if summary.cached_share is not None:
        tiles.append((f"{summary.cached_share:.0%}", "of prompt tokens cached"))
    if summary.total.goodput is not None:
        tiles.append((f"{summary.total.goodput.share:.1%}", "keep the SLO"))
    cells = "".join(f"<div class=tile><b>{escape(value)}</b>{escape(name)}</div>" for value, name in tiles)
    return f"<div class=tiles>{cells}</div><p>{escape(statuses_line(summary.total))}</p>"


def _plots(title: str, plots: Sequence[Plot]) -> str:
    if not plots:
        return ""
    cells = "".join(f"<figure><figcaption>{escape(plot.title)}</figcaption>{plot.svg()}</figure>" for plot in plots)
    return f"<h2>{escape(title)}</h2><div class=plots>{cells}</div>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=scroll><table><tr>{head}</tr>{body}</table></div>"


def _points_table(points: Sequence[Summary]) -> str:
    if len(points) < 2:
        return ""
    heads = (
        "offered, requests/s",
        "served",
        "tokens/s",
        "TTFT p50, ms",
        "TTFT p99, ms",
        "per token p99, ms",
        "keep the SLO",
        "limit",
    )
    rows = []
    for each in sorted(points, key=lambda each: each.offered_rate):
        ttft, itl, goodput = each.total.latencies.ttft, each.total.latencies.itl_token, each.total.goodput
        rows.append(
            (
                f"{each.offered_rate:.2f}",
                f"{each.request_rate:.2f}",
                f"{each.output_tokens_per_second:.0f}",
                milliseconds(ttft.p50) if ttft else UNKNOWN,
                milliseconds(ttft.p99) if ttft else UNKNOWN,
                milliseconds(itl.p99) if itl else UNKNOWN,
                f"{goodput.share:.1%}" if goodput else UNKNOWN,
                conclude(each).bound.value,
            )
        )
    return _table(heads, rows)


def _rates_note(points: Sequence[Summary], shown: Summary) -> str:
    text = f"Below, in detail: the run that was offered {shown.offered_rate:.2f} requests/s."
    if len(points) == 1:
        text = "One rate was measured. --sweep or --find-capacity shows the latency over load, and its knee."
    return f"<p class=soft>{text}</p>"


def _latencies(title: str, group: Group) -> str:
    rows = []
    for name, field in LATENCY_ROWS:
        spread = getattr(group.latencies, field)
        if spread is not None:
            numbers = (getattr(spread, head) for head in HEADS[1:])
            rows.append((name, str(spread.count), *(milliseconds(number) for number in numbers)))
    return f"<h2>{escape(title)}</h2>" + _table(("ms", *HEADS), rows)


def _client(summary: Summary) -> str:
    rows = [
        (
            str(number),
            f"{health.processor_share:.0%}",
            milliseconds(health.loop_lag_p50),
            milliseconds(health.loop_lag_p99),
            milliseconds(health.loop_lag_max),
            str(health.messages),
        )
        for number, health in enumerate(summary.clients)
    ]
    heads = ("client process", "of a core", "woke late p50, ms", "p99, ms", "max, ms", "messages")
    lag = summary.lag
    late = (
        f"<p>Requests were sent {milliseconds(lag.p50)} ms late at the median, {milliseconds(lag.p99)} ms at p99.</p>"
        if lag
        else ""
    )
    return "<h2>The client itself</h2>" + late + _table(heads, rows)


def _pretty(result: RunResult) -> str:
    """The workload as JSON. Never the target: its headers may carry secrets."""
    return msgspec.json.format(msgspec.json.encode(result.workload), indent=2).decode()
