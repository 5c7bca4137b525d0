"""What the race found: medians and spreads over its repeats, and the ratios that count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from loadtest.summary import Summary


class Leg(msgspec.Struct, frozen=True):
    """One course, run once against one peer."""

    course: str
    peer: str
    repeat: int
    tokens_per_second: float
    ttft_p50: float | None
    ttft_p99: float | None
    itl_p50: float | None
    itl_p99: float | None
    cached_share: float | None
    failed: int
    early_ends: int
    client_limited: bool


class Race(msgspec.Struct, frozen=True):
    machine: str
    threads: int
    quick: bool
    versions: dict[str, str]
    fidelity: dict[str, float]
    legs: list[Leg]
    absent: dict[str, str]
    """Peers that could not take part, and why."""


def leg(course: str, peer: str, repeat: int, summary: Summary) -> Leg:
    latencies = summary.total.latencies
    return Leg(
        course,
        peer,
        repeat,
        summary.output_tokens_per_second,
        latencies.ttft.p50 if latencies.ttft else None,
        latencies.ttft.p99 if latencies.ttft else None,
        latencies.itl_token.p50 if latencies.itl_token else None,
        latencies.itl_token.p99 if latencies.itl_token else None,
        summary.cached_share,
        summary.total.requests - summary.total.ok,
        summary.early_ends,
        any(client.limiting for client in summary.clients),
    )


def median_of(legs: Sequence[Leg], field: str) -> tuple[float, float, float] | None:
    """Median, least and greatest over the repeats; None where nothing was measured."""
    values = [value for each in legs if (value := getattr(each, field)) is not None]
    return (float(np.median(values)), min(values), max(values)) if values else None


def markdown(race: Race, labels: dict[str, str]) -> str:
    """The tables of docs/benchmarks.md."""
    groups: dict[str, dict[str, list[Leg]]] = defaultdict(lambda: defaultdict(list))
    for each in race.legs:
        groups[each.course][each.peer].append(each)
    parts = [
        f"{race.machine}; {race.threads} threads each; medians of {1 + max((each.repeat for each in race.legs), default=0)} repeats, least and greatest in brackets.",
        "",
    ]
    parts += [
        f"- {labels[name]}: {version}; argmax agreement with float32 {race.fidelity.get(name, float('nan')):.1%}"
        for name, version in race.versions.items()
    ]
    parts += [f"- {labels[name]}: did not take part: {why.splitlines()[0]}" for name, why in race.absent.items()]
    for course, peers in groups.items():
        parts += [
            "",
            f"**{course}**",
            "",
            "| server | tokens/s | first token p50, ms | p99 | per token p50, ms | p99 | cached |",
            "|---|---|---|---|---|---|---|",
        ]
        parts += [_row(labels[name], legs) for name, legs in peers.items()]
    return "\n".join(parts) + "\n"


def _row(label: str, legs: Sequence[Leg]) -> str:
    rate = median_of(legs, "tokens_per_second")
    cells = [f"{rate[0]:.0f} ({rate[1]:.0f} to {rate[2]:.0f})" if rate else "-"]
    for field in ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99"):
        found = median_of(legs, field)
        cells.append(f"{found[0] * 1e3:.1f}" if found else "-")
    cached = median_of(legs, "cached_share")
    cells.append(f"{cached[0]:.0%}" if cached else "-")
    marks = []
    if any(each.failed for each in legs):
        marks.append(f"{sum(each.failed for each in legs)} failed")
    if any(each.early_ends for each in legs):
        marks.append(f"{sum(each.early_ends for each in legs)} ended early")
    if any(each.client_limited for each in legs):
        marks.append("client-bound")
    return f"| {label}{' (' + ', '.join(marks) + ')' if marks else ''} | " + " | ".join(cells) + " |"


def ratio(race: Race, course: str, field: str, peer: str, ours: str = "firsttoken") -> float | None:
    """Ours over the peer's, of medians."""
    mine, theirs = (
        median_of([each for each in race.legs if each.course == course and each.peer == name], field)
        for name in (ours, peer)
    )
    return mine[0] / theirs[0] if mine and theirs and theirs[0] else None
