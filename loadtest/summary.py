"""The figures of a run, by the field's conventions (docs/load.md defines each)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from loadtest.client_health import ClientHealth
from loadtest.record import RequestRecord
from loadtest.run import RunResult, Sample
from loadtest.slo import Slo, judged
from loadtest.statistics import Spread, spread, wilson
from loadtest.transports.base import TargetFacts
from loadtest.workload import Workload


class Latencies(msgspec.Struct, frozen=True):
    """Of requests that ended well. None = nothing to measure it on."""

    ttft: Spread | None
    itl_message: Spread | None
    """Gaps between content messages."""
    itl_token: Spread | None
    """The same per token: a message of k tokens counts k times, with a k-th of its gap."""
    tpot: Spread | None
    e2e: Spread | None
    queued: Spread | None
    """On the server's clock, where it tells."""


class Goodput(msgspec.Struct, frozen=True):
    slo: str
    share: float
    """Of the judged requests, those that kept every bound; refused and failed ones did not."""
    share_low: float
    share_high: float
    rate: float
    """Such requests per second."""


class Group(msgspec.Struct, frozen=True):
    """All requests, or those of one class."""

    requests: int
    ok: int
    statuses: dict[str, int]
    latencies: Latencies
    goodput: Goodput | None


class ServerLoad(msgspec.Struct, frozen=True):
    """The server's own view, sampled twice a second over the measured time."""

    running_mean: float
    running_max: int
    waiting_mean: float
    waiting_max: int
    waiting_growth: float
    """Requests per second by which the queue grew over the measured time (least squares)."""
    kv_mean: float
    kv_max: float


class Summary(msgspec.Struct, frozen=True):
    began: str
    wire: str
    address: str
    facts: TargetFacts
    workload: Workload
    """What was asked: the same workload and seed ask the same again."""
    seconds: float
    """Measured time: after the warm-up, to the last arrival's time or the last answer's end."""
    offered_rate: float
    """Requests due per second."""
    request_rate: float
    """Requests per second that ended well."""
    output_tokens_per_second: float
    prompt_tokens_per_second: float
    concurrency: float
    """Mean number of requests on their way."""
    cached_share: float | None
    """Prompt tokens out of the prefix cache."""
    given_up: int
    """Requests that the workload itself cancelled or stalled: part of the load, not of the figures."""
    early_ends: int
    """Answers that the model ended before their planned length: the load was lighter than planned."""
    total: Group
    classes: dict[str, Group]
    lag: Spread | None
    """How late the client sent."""
    server: ServerLoad | None
    clients: list[ClientHealth]


def summarise(result: RunResult, slo: Slo | None = None) -> Summary:
    """Reduce a run to its figures."""
    start, end = window(result)
    seconds = max(1e-9, end - start)
    records = [record for record in result.records if judged(record)]
    good = [record for record in records if record.ok]
    names = sorted({record.priority for record in records})
    return Summary(
        began=result.began,
        wire=result.target.wire,
        address=result.target.address,
        facts=result.facts,
        workload=result.workload,
        seconds=seconds,
        offered_rate=sum(not record.warmup for record in result.records) / seconds,
        request_rate=sum(record.ok and start <= record.end <= end for record in result.records) / seconds,
        output_tokens_per_second=_tokens_within(result.records, start, end) / seconds,
        prompt_tokens_per_second=sum(_prompt(record) for record in good) / seconds,
        concurrency=sum(_overlap(record, start, end) for record in result.records) / seconds,
        cached_share=_cached_share(good),
        given_up=sum(not record.warmup and not judged(record) for record in result.records),
        early_ends=sum(record.output_tokens < record.max_tokens for record in good),
        total=group(records, slo, seconds),
        classes={name: group([each for each in records if each.priority == name], slo, seconds) for name in names},
        lag=spread([record.lag for record in records]),
        server=server_load([sample for sample in result.samples if start <= sample.at <= end]),
        clients=result.health,
    )


def window(result: RunResult) -> tuple[float, float]:
    """The measured time, in seconds after the run's start."""
    workload = result.workload
    start = workload.warmup
    last = max((record.end for record in result.records), default=start)
    end = min(last, workload.duration) if workload.duration is not None else last
    return start, max(start, end)


def group(records: Sequence[RequestRecord], slo: Slo | None, seconds: float) -> Group:
    good = [record for record in records if record.ok]
    statuses = Counter(record.status for record in records)
    return Group(len(records), len(good), dict(statuses), latencies(good), _goodput(records, slo, seconds))


def latencies(records: Sequence[RequestRecord]) -> Latencies:
    gaps = [gap for record in records for gap in record.gaps()]
    weights = [tokens for record in records for tokens in record.gap_tokens()]
    per_token = [gap / tokens if tokens else 0.0 for gap, tokens in zip(gaps, weights, strict=True)]
    return Latencies(
        ttft=spread([value for record in records if (value := record.ttft) is not None]),
        itl_message=spread(gaps),
        itl_token=spread(per_token, weights),
        tpot=spread([value for record in records if (value := record.tpot) is not None]),
        e2e=spread([record.latency for record in records]),
        queued=spread([value for record in records if (value := record.usage.queued) is not None]),
    )


def _goodput(records: Sequence[RequestRecord], slo: Slo | None, seconds: float) -> Goodput | None:
    if slo is None or not records:
        return None
    kept = sum(slo.kept(record) for record in records)
    low, high = wilson(kept, len(records))
    return Goodput(str(slo), kept / len(records), low, high, kept / seconds)


def server_load(samples: Sequence[Sample]) -> ServerLoad | None:
    if not samples:
        return None
    loads = [sample.load for sample in samples]
    waiting = np.array([load.waiting for load in loads], float)
    times = np.array([sample.at for sample in samples])
    growth = float(np.polyfit(times, waiting, 1)[0]) if len(samples) > 2 else 0.0
    return ServerLoad(
        running_mean=float(np.mean([load.running for load in loads])),
        running_max=max(load.running for load in loads),
        waiting_mean=float(waiting.mean()),
        waiting_max=int(waiting.max()),
        waiting_growth=growth,
        kv_mean=float(np.mean([load.kv_utilisation for load in loads])),
        kv_max=max(load.kv_utilisation for load in loads),
    )


def _tokens_within(records: Sequence[RequestRecord], start: float, end: float) -> float:
    """Tokens whose messages came within the measured time, whoever asked for them."""
    total = 0.0
    for record in records:
        inside = sum(count for at, count in zip(record.times, record.tokens, strict=True) if start <= at <= end)
        carried = sum(record.tokens)
        total += inside * record.output_tokens / carried if carried else 0.0
    return total


def _prompt(record: RequestRecord) -> int:
    told = record.usage.prompt_tokens
    return told if told is not None else record.prompt_tokens


def _overlap(record: RequestRecord, start: float, end: float) -> float:
    return max(0.0, min(record.end, end) - max(record.sent, start))


def _cached_share(records: Sequence[RequestRecord]) -> float | None:
    told = [record.usage for record in records if record.usage.cached_tokens is not None]
    prompt = sum(usage.prompt_tokens or 0 for usage in told)
    return sum(usage.cached_tokens or 0 for usage in told) / prompt if prompt else None
