"""The scenes of bench_scheduling.py: who comes, against what, under which policies. Each is fixed to the last digit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from math import inf
from pathlib import Path

import msgspec

from loadtest.arrivals import Arrivals, constant_rate
from loadtest.distributions import Distribution
from loadtest.record import RequestRecord
from loadtest.sessions import SessionMaker
from loadtest.simulation.profile import PROFILES
from loadtest.simulation.simulate import Setup, Simulation, simulate
from loadtest.slo import Slo
from loadtest.statistics import spread
from loadtest.traces import RECORDING, RecordingHeader, RecordingRow
from loadtest.workload import Behaviour, Lengths, TraceUse, Workload
from server.scheduling.admission import Admission
from server.scheduling.config import BatcherConfig
from server.scheduling.policies import Policies

PROFILE = PROFILES["h100-8b-tp1"]
CONFIG = BatcherConfig(budget="adaptive", max_sequences=128, step_tokens=PROFILE.max_step_tokens, itl_limit=0.1)
OLD = replace(
    CONFIG, order="arrival", fair_tenants=False, standard_share=0.0, batch_share=0.0, preemptions_per_second=0.0
)
"""First come, first served; chunks as the adaptive budget cuts them."""
CAPS = Admission(max_waiting_requests=512, max_waiting_tokens=400_000)
SLO = Slo(ttft=1.0, itl=0.05)
CARRIED = 36.0
"""Requests per second of the chats that the engine carries just so."""
LONGEST_PROMPT, LONGEST_ANSWER = 2000.0, 600.0
"""Of the chats, tokens."""
TRACES = (
    "azure_2023_conversation.csv",
    "azure_2023_code.csv",
    "mooncake_conversation.jsonl",
    "mooncake_synthetic.jsonl",
)
CONVERSATION = TRACES[0]


def trace_path(name: str) -> Path | None:
    """Where the trace lies: in LOAD_TRACES, in ./traces or beside the checkout; None where it is not."""
    given = os.environ.get("LOAD_TRACES")
    places = [Path(given)] if given else [Path("traces"), *sorted(Path("..").glob("*/traces"))]
    return next((place / name for place in places if (place / name).is_file()), None)


def required(name: str) -> Path:
    """Where the trace lies. Raises FileNotFoundError."""
    path = trace_path(name)
    if path is None:
        raise FileNotFoundError(
            f"{name}: set LOAD_TRACES to the directory of the traces (docs/load.md says where from)"
        )
    return path


def replayed(name: str, seconds: float, *, speedup: float = 1.0, **changes: object) -> Workload:
    """The first ``seconds`` of a trace whose clock runs ``speedup`` times faster. Raises FileNotFoundError."""
    asked = Workload(trace=TraceUse(str(required(name)), speedup=speedup), duration=seconds, seed=7)
    return msgspec.structs.replace(asked, **changes)


def chats(rate: float, seconds: float, **changes: object) -> Workload:
    """Short chats, Poisson arrivals."""
    lengths = Lengths(
        Distribution("lognormal", {"mean": 400.0, "cv": 0.8, "max": LONGEST_PROMPT}),
        Distribution("lognormal", {"mean": 150.0, "cv": 0.7, "max": LONGEST_ANSWER}),
    )
    asked = Workload(arrivals=Arrivals(constant_rate(rate)), duration=seconds, lengths=lengths, seed=7)
    return msgspec.structs.replace(asked, **changes)


def rows(asked: Workload, *, tenant: str = "", priority: str = "") -> list[RecordingRow]:
    """What a workload asks, as a recording would show it, so that scenes can be laid over one another."""
    return [
        RecordingRow(
            session.at,
            session.prefix_tokens + session.turns[0].fresh_tokens,
            session.turns[0].output_tokens,
            priority=priority or session.priority,
            tenant=tenant or session.tenant,
        )
        for session in SessionMaker(asked).sessions()
    ]


def run(
    workload: Workload, config: BatcherConfig = CONFIG, policies: Policies | None = None, **setup: object
) -> Simulation:
    return simulate(workload, msgspec.structs.replace(Setup(profile=PROFILE, config=config), **setup), policies)


def run_rows(scene: Iterable[RecordingRow], config: BatcherConfig = CONFIG, **setup: object) -> Simulation:
    """The rows as one workload, in the order of their times; whoever waits at their end is served, too."""
    lines = [msgspec.json.encode(RecordingHeader(RECORDING, 1, 0))]
    lines += [msgspec.json.encode(row) for row in sorted(scene, key=lambda row: row.at)]
    with tempfile.TemporaryDirectory(prefix="firsttoken-scene-") as directory:
        path = Path(directory) / "scene.jsonl"
        path.write_bytes(b"\n".join(lines))
        return run(Workload(trace=TraceUse(str(path)), seed=7, drain=900.0), config, None, **setup)


def impatient(seconds: float) -> Behaviour:
    """Clients that say so: they have no use for a later first token."""
    return Behaviour(ttft_deadline=seconds)


def ttfts(records: list[RequestRecord]) -> tuple[float, float]:
    """Median and 99th percentile, seconds. Who was refused, or never got one, waits for ever."""
    found = spread([inf if record.ttft is None else record.ttft for record in records])
    return (found.p50, found.p99) if found else (inf, inf)


def itls(records: list[RequestRecord]) -> tuple[float, float]:
    """The same of the gaps between tokens."""
    found = spread([gap for record in records for gap in record.gaps()])
    return (found.p50, found.p99) if found else (inf, inf)


def served(records: Iterable[RequestRecord], began: float, ended: float) -> int:
    """Tokens, prompts and output, that the engine worked off in a span: a prompt counts when its first token is out."""
    tokens = 0
    for record in records:
        inside = [count for at, count in zip(record.times, record.tokens, strict=True) if began <= at < ended]
        tokens += sum(inside)
        if record.times and began <= record.times[0] < ended:
            tokens += record.prompt_tokens - (record.usage.cached_tokens or 0)
    return tokens


def waits(records: Iterable[RequestRecord]) -> list[float]:
    """Seconds that each one who was let in waited until its prompt was begun; who never was, until it was over."""
    let_in = (record for record in records if record.status != "RESOURCE_EXHAUSTED")
    return [record.end - record.sent if record.usage.queued is None else record.usage.queued for record in let_in]


def longest_wait(share: float, rate: float) -> float:
    """The bound on the wait of whoever CAPS let in, in seconds, as docs/scheduling.md states it: ``share`` is what its class gets at
    least, ``rate`` the tokens per second that the engine works off."""
    ahead = CAPS.max_waiting_tokens + CAPS.max_waiting_requests * LONGEST_ANSWER
    account = 2 * 2 * PROFILE.max_step_tokens
    cost = PROFILE.cost
    work = cost.per_new_token * LONGEST_PROMPT + LONGEST_ANSWER * (cost.per_decode + cost.per_decode_context * 2600)
    seat = LONGEST_ANSWER * 2 * CONFIG.itl_target
    return (ahead + account) / (share * rate) + CONFIG.length_weight * work + seat


def goodput(simulation: Simulation, seconds: float) -> float:
    """Requests per second that keep SLO."""
    return sum(SLO.kept(record) for record in simulation.result.records) / seconds
