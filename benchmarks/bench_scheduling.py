"""What each scheduling policy is held to: ``python -m benchmarks.figures --only scheduling``.

Everything but the last figure runs in virtual time, so the machine's load changes nothing: profile h100-8b-tp1 (an estimate), the
scenes of scheduling_scenes.py, seed 7. docs/scheduling.md explains each policy and shows it on and off. The traces are not part of the
project; a figure that needs one and finds none does not hold, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import msgspec

from benchmarks.figure import Figure, at_least, at_most
from benchmarks.scheduling_scenes import (
    CAPS,
    CONFIG,
    CONVERSATION,
    OLD,
    SLO,
    TRACES,
    chats,
    goodput,
    impatient,
    itls,
    recorded,
    replayed,
    required,
    rows,
    run,
    ttfts,
)
from loadtest.record import RequestRecord
from loadtest.simulation.cache_replay import hit_rate, unique_blocks
from loadtest.simulation.compare import simulate_mode
from loadtest.simulation.profile import PROFILES
from loadtest.simulation.simulate import Setup, Simulation
from loadtest.traces import RecordingRow, read_trace
from server.kv.eviction import LeastRecentlyUsed, ReusedStayLonger
from server.scheduling.reception import charge

LRU_MEASURED = {
    "mooncake_conversation.jsonl": (7.9, 19.6, 27.9, 35.4),
    "mooncake_synthetic.jsonl": (7.8, 15.7, 26.2, 44.4),
}
"""Per cent of blocks at 2, 5, 10 and 25 % of the unique blocks: what others measured on the same traces."""
SIZES = (2, 5, 10, 25)
CARRIED = 36.0
"""Requests per second of the chats that the engine carries just so."""
SPEEDS = {TRACES[0]: 2.0, TRACES[1]: 2.0, TRACES[2]: 0.3, TRACES[3]: 0.3}
"""How much faster each trace's clock runs, so that the engine is busy and keeps up."""


def figures() -> list[Figure]:
    parts: list[Callable[[], Iterable[Figure]]] = [
        long_prompt,
        classes,
        minimum_share,
        admission,
        batching,
        budget,
        forecast,
        tenants,
        eviction,
        hour,
    ]
    found: list[Figure] = []
    for part in parts:
        try:
            found += part()
        except FileNotFoundError as error:
            found.append(Figure(f"scheduling, {part.__name__}", "measured", str(error), holds=False))
    return found


def long_prompt() -> Iterator[Figure]:
    """Chats at half of what is carried for two minutes; the same with two 100,000-token prompts."""
    alone = rows(chats(CARRIED / 2, 120.0))
    documents = [RecordingRow(at, 100_000, 200) for at in (20.0, 70.0)]
    without, mixed = run(recorded(alone)).result.records, run(recorded(alone + documents)).result.records
    others = [record for record in mixed if record.prompt_tokens < 50_000]
    long = [record for record in mixed if record.prompt_tokens >= 50_000]
    name = "100k-token prompts among chats"
    yield at_most(f"{name}: p99 ITL of the others, times without", 2.0, itls(others)[1] / itls(without)[1], "")
    yield at_most(f"{name}: p99 TTFT of the others, times without", 1.5, ttfts(others)[1] / ttfts(without)[1], "")
    yield at_least(f"{name}: share of the long ones answered", 1.0, sum(r.ok for r in long) / len(long), "")


def classes() -> Iterator[Figure]:
    """Three interactive requests among ten, twice what is carried, for two minutes; caps equal, first come first served beside it."""
    asked = chats(2 * CARRIED, 120.0, classes={"interactive": 0.3, "batch": 0.7}, drain=900.0)
    new = run(asked, admission=CAPS)
    # The same requests, all of one class, in the order in which they come.
    old = run(msgspec.structs.replace(asked, classes={"standard": 1.0}), OLD, admission=CAPS)
    chosen = {record.session for record in _of_class(new, "interactive")}
    mine = [[record for record in each.result.records if record.session in chosen] for each in (new, old)]
    yield at_least(
        "interactive class at 2x overload: p50 TTFT, times better", 3.0, ttfts(mine[1])[0] / ttfts(mine[0])[0], ""
    )
    lost = 1.0 - _tokens_per_second(new) / _tokens_per_second(old)
    yield at_most("interactive class at 2x overload: throughput lost", 0.05, lost, "")


def minimum_share() -> Iterator[Figure]:
    """Interactive requests alone are twice what is carried; six requests a second are batch work."""
    scene = rows(chats(2 * CARRIED, 120.0), priority="interactive") + rows(chats(6.0, 120.0, seed=8), priority="batch")
    simulation = run(recorded(scene), admission=CAPS)
    batch = _of_class(simulation, "batch")
    within = [r for r in simulation.result.records if r.ok and r.end <= 120.0]
    share = sum(_work(r) for r in within if r.priority == "batch") / sum(_work(r) for r in within)
    yield at_least("batch class under an interactive flood: its share of the tokens", CONFIG.batch_share, share, "")
    rate = sum(_work(r) for r in within) / 120.0
    seated = CONFIG.max_sequences * 2600
    bound = (CAPS.max_waiting_tokens + seated) / (CONFIG.batch_share * rate)
    longest = max(r.usage.queued or 0.0 for r in batch if r.ok)
    yield at_most("batch class under an interactive flood: longest wait of whoever was admitted", bound, longest, "s")


def admission() -> Iterator[Figure]:
    """Chats at 0.5 to 2 times what is carried; the peak, and what is left of it at twice the peak's rate, with and without admission."""
    seconds, swept = 90.0, {}
    for factor in (0.5, 0.75, 0.9, 1.0, 1.1):
        asked = chats(factor * CARRIED, seconds, behaviour=impatient(SLO.ttft or 1.0))
        swept[factor * CARRIED] = goodput(run(asked, admission=CAPS), seconds)
    rate, peak = max(swept.items(), key=lambda pair: pair[1])
    overloaded = chats(2 * rate, seconds, behaviour=impatient(SLO.ttft or 1.0))
    kept = goodput(run(overloaded, admission=CAPS), seconds) / peak
    yield at_least("goodput at twice the rate of its peak, with admission, of the peak", 0.9, kept, "")
    lost = goodput(run(chats(2 * rate, seconds), forecast=False), seconds) / peak
    yield at_most("goodput at twice the rate of its peak, without admission, of the peak", 0.5, lost, "")


def batching() -> Iterator[Figure]:
    """The highest rate of the conversation trace at which half of the requests keep the SLO, in flight against static."""
    rates = {mode: _highest_rate(mode, 0.5) for mode in ("static", "inflight")}
    yield at_least(
        "in-flight against static batching: rate at which half keep the SLO, times",
        3.0,
        rates["inflight"] / rates["static"],
        "",
    )


def budget() -> Iterator[Figure]:
    """Each trace for a minute under fixed budgets and the adaptive one: no fixed budget that answers as soon has a better p99 ITL, and the
    fixed budget with the nearest p99 ITL answers no sooner."""
    for name in TRACES:
        asked = replayed(name, 60.0, speedup=SPEEDS[name])
        fixed = [
            run(asked, replace(CONFIG, budget="fixed", step_tokens=tokens)).result.records
            for tokens in (512, 1024, 2048, 4096)
        ]
        mine = run(asked).result.records
        ttft, itl = ttfts(mine)[0], itls(mine)[1]
        as_soon = [itls(each)[1] for each in fixed if ttfts(each)[0] <= 1.02 * ttft]
        nearest = min(fixed, key=lambda each: abs(itls(each)[1] - itl))
        stem = name.partition(".")[0]
        yield at_most(
            f"adaptive budget, {stem}: p99 ITL, times the best fixed one that answers as soon",
            1.0,
            itl / min(as_soon, default=float("inf")),
            "",
        )
        yield at_most(
            f"adaptive budget, {stem}: p50 TTFT, times the fixed one of nearest p99 ITL",
            1.02,
            ttft / ttfts(nearest)[0],
            "",
        )


def forecast() -> Iterator[Figure]:
    """The conversation and code traces, from nearly idle to overloaded."""
    for name, speed in ((TRACES[0], 1.0), (TRACES[0], 3.0), (TRACES[1], 1.0), (TRACES[1], 3.0)):
        error = run(replayed(name, 90.0, speedup=speed)).account.forecast_error
        found = float("inf") if error is None else error
        yield at_most(f"predicted TTFT, {name.partition('.')[0]} x{speed:g}: median error", 0.2, found, "")


def tenants() -> Iterator[Figure]:
    """A quiet tenant beside one that floods at ten times its rate, everything interactive; then both with more than their half."""
    quiet = rows(chats(CARRIED / 5, 120.0), tenant="quiet")
    flood = rows(chats(2 * CARRIED, 120.0, seed=8), tenant="flood")
    alone = run(recorded(quiet)).result.records
    beside = run(recorded(quiet + flood), admission=CAPS).result.records
    mine = [record for record in beside if record.tenant == "quiet"]
    yield at_most("quiet tenant beside a flood: p99 TTFT, times alone", 2.0, ttfts(mine)[1] / ttfts(alone)[1], "")
    both = rows(chats(CARRIED, 120.0), tenant="a") + rows(chats(10 * CARRIED, 120.0, seed=8), tenant="b")
    records = run(recorded(both), admission=None, forecast=False).result.records
    served = {name: sum(_charge(r) for r in records if r.tenant == name and 20.0 <= r.end <= 110.0) for name in "ab"}
    bound = 2 * max(2000.0, 2 * CONFIG.max_sequences * 600.0)
    yield at_most("two backlogged tenants: difference of service", bound, abs(served["a"] - served["b"]), "tokens")


def eviction() -> Iterator[Figure]:
    """LRU first, to see that we measure what others did; then ours."""
    gains = []
    for name, measured in LRU_MEASURED.items():
        trace = read_trace(required(name))
        for percent, expected in zip(SIZES, measured, strict=True):
            capacity = unique_blocks(trace) * percent // 100
            lru, ours = (100 * hit_rate(trace, capacity, policy) for policy in (LeastRecentlyUsed, ReusedStayLonger))
            point = f"{name.partition('.')[0]} at {percent} %"
            yield at_most(f"LRU reproduced, {point}: off by", 0.1, abs(lru - expected), "points")
            gains.append(ours - lru)
    yield at_least("hit rate against LRU: points that are better", 6, sum(gain > 0 for gain in gains), "of 8")
    yield at_least("hit rate against LRU: worst difference", 0.0, min(gains), "points")


def hour() -> Iterator[Figure]:
    """Processor time of the whole conversation trace, 3,502 s."""
    asked = replayed(CONVERSATION, 3600.0)
    began = time.process_time()
    run(asked)
    yield at_most("an hour of the conversation trace simulates in", 120.0, time.process_time() - began, "s")


# ------------------------------------------------------------------ helpers


def _of_class(simulation: Simulation, name: str) -> list[RequestRecord]:
    return [record for record in simulation.result.records if record.priority == name]


def _work(record: RequestRecord) -> int:
    return record.prompt_tokens + sum(record.tokens)


def _charge(record: RequestRecord) -> float:
    return charge(record.prompt_tokens - (record.usage.cached_tokens or 0), sum(record.tokens))


def _tokens_per_second(simulation: Simulation) -> float:
    records = simulation.result.records
    return sum(_work(record) for record in records if record.ok) / max(record.end for record in records)


def _highest_rate(mode: str, share: float) -> float:
    """By doubling and halving, within 5 %."""
    setup = Setup(profile=PROFILES["h100-8b-tp1"], config=CONFIG)

    def keeps(speedup: float) -> bool:
        asked = replayed(CONVERSATION, 90.0, speedup=speedup, drain=300.0)
        records = simulate_mode(mode, asked, setup).result.records
        return sum(SLO.kept(record) for record in records) >= share * len(records)

    low, high = 0.125, 0.25
    while keeps(high):
        low, high = high, high * 2
    while high / low > 1.05:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
