"""What the race found: medians and spreads over its repeats, and the ratios that count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from loadtest.race.environment import RaceError
from loadtest.summary import Summary

OURS = "firsttoken"
IDLE_SHARE = 0.02
"""Processor time that servers whose turn it is not may take before a row says so."""


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
    idlers: float = 0.0
    """Share of all the peers' processor time that those took whose turn it was not."""


class Race(msgspec.Struct):
    """Grows piece by piece."""

    machine: str
    threads: int
    quick: bool
    versions: dict[str, str] = {}
    fidelity: dict[str, float] = {}
    legs: list[Leg] = []
    absent: dict[str, str] = {}
    """Peers that could not take part, and why."""


def read_race(path: Path, like: Race) -> Race:
    """An earlier race, to go on with. Raises RaceError where it was another machine's, or of another kind."""
    try:
        race = msgspec.json.decode(path.read_bytes(), type=Race)
    except msgspec.MsgspecError as error:
        raise RaceError(f"--resume: {path}: {error}") from error
    for field in ("machine", "threads", "quick"):
        if (was := getattr(race, field)) != (now := getattr(like, field)):
            raise RaceError(f"--resume: {path} was run with {field} {was!r}, this is {now!r}")
    return race


def runs_of(race: Race, course: str, peer: str) -> int:
    return sum(each.course == course and each.peer == peer for each in race.legs)


def best_throughput(race: Race, course: str) -> float:
    """Output tokens per second of the fastest server, ours aside unless it ran alone. Raises RaceError where nobody did."""
    names = {each.peer for each in race.legs if each.course == course}
    rates = [_middle(race, course, name, "tokens_per_second") for name in names - {OURS} or names]
    if not rates:
        raise RaceError(f"the rates of the open courses follow from {course!r}, which nobody has run")
    return max(rate for rate in rates if rate is not None)


def leg(course: str, peer: str, repeat: int, summary: Summary, idlers: float = 0.0) -> Leg:
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
        idlers,
    )


def median_of(legs: Sequence[Leg], field: str) -> tuple[float, float, float] | None:
    """Median, least and greatest over the repeats; None where nothing was measured."""
    values = [value for each in legs if (value := getattr(each, field)) is not None]
    return (float(np.median(values)), min(values), max(values)) if values else None


def markdown(race: Race, labels: dict[str, str]) -> str:
    """The tables of docs/benchmarks.md. Ratios are ours over the server's: of throughput more is better, of times less."""
    parts = [
        f"{race.machine}; {race.threads} threads each; medians of the repeats, least and greatest in brackets.",
        "",
        "| server | version | argmax agreement with float32 |",
        "|---|---|---|",
        *(
            f"| {labels[name]} | {version} | {'-' if (share := race.fidelity.get(name)) is None else f'{share:.1%}'} |"
            for name, version in race.versions.items()
        ),
    ]
    parts += [f"- {labels[name]}: did not take part: {why.splitlines()[0]}" for name, why in race.absent.items()]
    for course in dict.fromkeys(each.course for each in race.legs):
        peers = dict.fromkeys(each.peer for each in race.legs if each.course == course)
        repeats = max(runs_of(race, course, name) for name in peers)
        parts += [
            "",
            f"**{course}** ({repeats} repeats)",
            "",
            "| server | tokens/s | ours / its | first token p50, ms | ours / its | p99 | ours / its | per token p50, ms | p99 | cached |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        parts += [_row(race, course, name, labels[name]) for name in peers]
    return "\n".join(parts) + "\n"


def _row(race: Race, course: str, peer: str, label: str) -> str:
    legs = [each for each in race.legs if each.course == course and each.peer == peer]
    cells = []
    for field, factor in (("tokens_per_second", 1.0), ("ttft_p50", 1e3), ("ttft_p99", 1e3)):
        found = median_of(legs, field)
        over = None if peer == OURS else ratio(race, course, field, peer)
        spread = "" if found is None or len(legs) < 2 else f" ({found[1] * factor:.0f} to {found[2] * factor:.0f})"
        cells += [f"{found[0] * factor:.0f}{spread}" if found else "-", "" if over is None else f"{over:.2f}"]
    for field in ("itl_p50", "itl_p99"):
        found = median_of(legs, field)
        cells.append(f"{found[0] * 1e3:.1f}" if found else "-")
    cached = median_of(legs, "cached_share")
    cells.append(f"{cached[0]:.0%}" if cached else "-")
    return f"| {label}{_marks(legs)} | " + " | ".join(cells) + " |"


def _marks(legs: Sequence[Leg]) -> str:
    """What casts doubt on a row."""
    marks = [
        f"{count} {what}" for what in ("failed", "early_ends") if (count := sum(getattr(each, what) for each in legs))
    ]
    if any(each.client_limited for each in legs):
        marks.append("client-bound")
    if (idlers := max(each.idlers for each in legs)) > IDLE_SHARE:
        marks.append(f"others took up to {idlers:.0%} of the processor time")
    return f" ({', '.join(marks).replace('early_ends', 'ended early')})" if marks else ""


def ratio(race: Race, course: str, field: str, peer: str, ours: str = OURS) -> float | None:
    """Ours over the peer's, of medians."""
    mine, theirs = (_middle(race, course, name, field) for name in (ours, peer))
    return mine / theirs if mine is not None and theirs else None


def _middle(race: Race, course: str, peer: str, field: str) -> float | None:
    found = median_of([each for each in race.legs if each.course == course and each.peer == peer], field)
    return found[0] if found else None
