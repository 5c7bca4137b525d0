"""Which plots a report has, and what they show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loadtest.capacity import Capacity
from loadtest.record import RequestRecord
from loadtest.report.plot import Mark, Plot, Series
from loadtest.run import RunResult
from loadtest.slo import judged
from loadtest.summary import Summary, window
from loadtest.sweep import knee

CURVE_POINTS = 200
MAX_DOTS = 4000


def over_load(points: Sequence[Summary], capacity: Capacity | None) -> list[Plot]:
    """Latency and throughput over the offered rate, the knee marked; nothing where there is only one rate."""
    ordered = sorted((each for each in points if each.total.latencies.ttft), key=lambda each: each.offered_rate)
    if len(ordered) < 2:
        return []
    rates = [each.offered_rate for each in ordered]
    marks = [Mark(f"capacity {capacity.rate:.2f}/s", x=capacity.rate)] if capacity is not None else []
    if (place := knee_of(ordered)) is not None:
        marks.append(Mark(f"knee {rates[place]:.2f}/s", x=rates[place]))
    served = [each.request_rate for each in ordered]
    return [
        _latency_over(ordered, rates, "time to first token", "ttft", marks),
        _latency_over(ordered, rates, "time between tokens", "itl_token", marks),
        Plot(
            "Requests served over requests offered",
            "offered, requests/s",
            "served, requests/s",
            [Series("served", rates, served), Series("all of them", rates, rates, "curve")],
            marks,
        ),
        Plot(
            "Tokens per second over load",
            "offered, requests/s",
            "tokens/s",
            [Series("output", rates, [each.output_tokens_per_second for each in ordered])],
            marks,
        ),
    ]


def knee_of(ordered: Sequence[Summary]) -> int | None:
    """Index of the knee of the first token's 99th percentile; ``ordered`` by rate."""
    told = [(each.offered_rate, each.total.latencies.ttft.p99) for each in ordered if each.total.latencies.ttft]
    return knee([rate for rate, _ in told], [latency for _, latency in told])


def _latency_over(ordered: Sequence[Summary], rates: list[float], what: str, field: str, marks: list[Mark]) -> Plot:
    spreads = [(rate, getattr(each.total.latencies, field)) for rate, each in zip(rates, ordered, strict=True)]
    known = [(rate, spread) for rate, spread in spreads if spread is not None]
    across = [rate for rate, _ in known]
    series = [
        Series(share, across, [getattr(spread, share) * 1e3 for _, spread in known]) for share in ("p50", "p95", "p99")
    ]
    return Plot(f"{what[0].upper()}{what[1:]} over load", "offered, requests/s", "ms", series, marks, log_y=True)


def distributions(result: RunResult, bounds: dict[str, float]) -> list[Plot]:
    """What share of requests had their first token, their tokens, their answer within a time."""
    good = [record for record in result.records if judged(record) and record.ok]
    gaps = [gap for record in good for gap in record.gaps()]
    values: list[tuple[str, str, list[float]]] = [
        ("Time to first token", "ttft", [value for record in good if (value := record.ttft) is not None]),
        ("Time between content messages", "itl", gaps),
        ("Whole request", "e2e", [record.latency for record in good]),
    ]
    return [_cumulative(title, [("all", data)], bounds.get(key)) for title, key, data in values if len(data) > 1]


def by_class(result: RunResult) -> list[Plot]:
    """The first token's distribution of each class, where there are several."""
    good = [record for record in result.records if judged(record) and record.ok]
    names = sorted({record.priority for record in good})
    if len(names) < 2:
        return []

    def plot(title: str, measure: Callable[[RequestRecord], float | None]) -> Plot:
        groups = [
            (name, [value for record in good if record.priority == name and (value := measure(record)) is not None])
            for name in names
        ]
        return _cumulative(title, groups, None)

    return [
        plot("Time to first token by class", lambda record: record.ttft),
        plot("Time per output token by class", lambda record: record.tpot),
    ]


def _cumulative(title: str, groups: Sequence[tuple[str, list[float]]], bound: float | None) -> Plot:
    shares = np.linspace(0, 1, CURVE_POINTS)
    series = [
        Series(
            name, [float(value) * 1e3 for value in np.quantile(data, shares)], [float(s) * 100 for s in shares], "curve"
        )
        for name, data in groups
        if data
    ]
    marks = [Mark("SLO", x=bound * 1e3)] if bound is not None else []
    return Plot(title, "ms, at most", "% of them", series, marks, log_x=True)


def timeline(result: RunResult) -> list[Plot]:
    """The run over time: who waits and runs, the KV cache, first tokens, tokens per second."""
    start, _ = window(result)
    marks = [Mark("measured from here", x=start)] if start > 0 else []
    plots = [_first_tokens(result, marks), _token_rate(result, marks)]
    if result.samples:
        times = [sample.at for sample in result.samples]
        loads = [sample.load for sample in result.samples]
        running = Series("running", times, [float(load.running) for load in loads], "step")
        waiting = Series("waiting", times, [float(load.waiting) for load in loads], "step")
        used = Series("in use", times, [load.kv_utilisation * 100 for load in loads], "step")
        kept = Series("kept for reuse", times, [load.kv_cached * 100 for load in loads], "step")
        plots.insert(0, Plot("Queue on the server", "seconds", "requests", [running, waiting], marks))
        plots.insert(1, Plot("KV cache", "seconds", "% of blocks", [used, kept], marks))
    return plots


def _first_tokens(result: RunResult, marks: Sequence[Mark]) -> Plot:
    seen = [record for record in result.records if record.ttft is not None]
    step = max(1, len(seen) // MAX_DOTS)
    names = sorted({record.priority for record in seen})
    series = [
        Series(
            name,
            [record.sent for record in seen[::step] if record.priority == name],
            [(record.ttft or 0.0) * 1e3 for record in seen[::step] if record.priority == name],
            "points",
        )
        for name in names
    ]
    return Plot("Time to first token, each request when it was sent", "seconds", "ms", series, marks, log_y=True)


def _token_rate(result: RunResult, marks: Sequence[Mark]) -> Plot:
    times = np.concatenate([np.asarray(record.times) for record in result.records] or [np.zeros(0)])
    tokens = np.concatenate([np.asarray(record.tokens, float) for record in result.records] or [np.zeros(0)])
    end = float(times.max()) if len(times) else 1.0
    width = max(0.25, end / 120)
    edges = np.arange(0, end + width, width)
    totals, _ = np.histogram(times, bins=edges, weights=tokens)
    series = Series("output", [float(edge) for edge in edges[:-1]], [float(total) / width for total in totals], "step")
    return Plot("Tokens per second", "seconds", "tokens/s", [series], marks)
