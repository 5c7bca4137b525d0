"""Scheduling figures about how much is carried: admission, batching, the step's budget, the forecast. In virtual time; see
bench_scheduling.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf

from benchmarks.figure import Figure, at_least, at_most
from benchmarks.scheduling_scenes import (
    CAPS,
    CARRIED,
    CONFIG,
    CONVERSATION,
    PROFILE,
    SLO,
    TRACES,
    chats,
    goodput,
    impatient,
    itls,
    replayed,
    run,
    ttfts,
)
from loadtest.record import RequestRecord
from loadtest.simulation.compare import simulate_mode
from loadtest.simulation.simulate import Setup

SPEEDS = {TRACES[0]: 2.0, TRACES[1]: 2.0, TRACES[2]: 0.3, TRACES[3]: 0.3}
"""How much faster each trace's clock runs, so that the engine is busy."""
BUDGET_SCENES = ((TRACES[0], 2.0, 120.0), (TRACES[1], 1.0, 300.0), (TRACES[2], 0.3, 300.0), (TRACES[3], 0.3, 300.0))
"""Trace, speed of its clock, seconds: some hundreds of requests of each, that leave the engine time between the bursts."""
FIXED = (512, 1024, 2048, 4096, 8192)
"""Tokens of a step: the fixed budgets that the adaptive one is held against."""
TIE = 1.02
"""Medians within 2 % of one another count as equal."""
SWEPT = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
"""Rates, times what is carried."""
BATCHES = (16, 32, 64, 128)
"""Sizes of a static batch, of which the best counts."""


def admission() -> Iterator[Figure]:
    """Chats whose clients say by when they need their first token, at rates around what is carried. The peak; and at twice its rate:
    with admission; the same requests with neither caps nor forecast, so that who is late is only found out in the room; and with clients
    that do not say it, too."""
    seconds, told = 90.0, impatient(SLO.ttft or 1.0)
    swept = {
        factor * CARRIED: goodput(run(chats(factor * CARRIED, seconds, behaviour=told), admission=CAPS), seconds)
        for factor in SWEPT
    }
    rate, peak = max(swept.items(), key=lambda pair: pair[1])
    kept = goodput(run(chats(2 * rate, seconds, behaviour=told), admission=CAPS), seconds) / peak
    found_out = goodput(run(chats(2 * rate, seconds, behaviour=told), forecast=False), seconds) / peak
    lost = goodput(run(chats(2 * rate, seconds), forecast=False), seconds) / peak
    name = "goodput at twice the rate of its peak, of the peak"
    yield at_least(f"{name}: with admission", 0.9, kept, "")
    yield at_most(f"{name}: without, late ones end where they wait", kept, found_out, "")
    yield at_most(f"{name}: without, nobody says when it is late", 0.5, lost, "")


def batching() -> Iterator[Figure]:
    """The highest rate of the conversation trace at which half of the requests keep the SLO, in flight against static batches."""
    static = max(_highest_rate("static", seats) for seats in BATCHES)
    inflight = _highest_rate("inflight", CONFIG.max_sequences)
    name = "in-flight against the best static batching: rate at which half keep the SLO, times"
    yield at_least(name, 3.0, inflight / static, "")


def _highest_rate(mode: str, seats: int) -> float:
    """Times the trace's own; by doubling and halving, within 5 %."""
    setup = Setup(profile=PROFILE, config=replace(CONFIG, max_sequences=seats))

    def keeps(speedup: float) -> bool:
        asked = replayed(CONVERSATION, 90.0, speedup=speedup, drain=300.0)
        records = simulate_mode(mode, asked, setup).result.records
        return 2 * sum(SLO.kept(record) for record in records) >= len(records)

    low = 0.25
    while not keeps(low):
        low /= 2
    high = 2 * low
    while keeps(high):
        low, high = high, high * 2
    while high / low > 1.05:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def budget() -> Iterator[Figure]:
    """Each trace under one adaptive budget and under fixed ones. The best fixed budget of a trace is the one with the lowest p50 TTFT;
    among equals, the one with the lowest p99 ITL."""
    for name, speed, seconds in BUDGET_SCENES:
        asked = replayed(name, seconds, speedup=speed)
        fixed = [run(asked, replace(CONFIG, budget="fixed", step_tokens=size)).result.records for size in FIXED]
        best, mine = _best(fixed), run(asked).result.records
        label = f"adaptive budget against the best fixed one, {name.partition('.')[0]}"
        yield at_most(f"{label}: p50 TTFT, times", TIE, ttfts(mine)[0] / ttfts(best)[0], "")
        yield at_most(f"{label}: p99 ITL, times", 0.999, itls(mine)[1] / itls(best)[1], "")


def _best(runs: list[list[RequestRecord]]) -> list[RequestRecord]:
    soonest = min(ttfts(records)[0] for records in runs)
    return min((r for r in runs if ttfts(r)[0] <= TIE * soonest), key=lambda records: itls(records)[1])


def forecast() -> Iterator[Figure]:
    """Each trace at half the speed at which it keeps the engine busy, and half as fast again; on a step runner, and on an executor."""
    for engine, name, faster in (
        (engine, name, faster) for engine in ("steps", "executor") for name in TRACES for faster in (0.5, 1.5)
    ):
        speed = faster * SPEEDS[name]
        error = run(replayed(name, 90.0, speedup=speed), engine=engine).account.forecast_error
        label = f"predicted TTFT, {engine}, {name.partition('.')[0]} x{speed:g}: median error"
        yield at_most(label, 0.2, inf if error is None else error, "")


def hour() -> Iterator[Figure]:
    """Processor time of the whole conversation trace, 3,502 s."""
    asked = replayed(CONVERSATION, 3600.0)
    began = time.process_time()
    run(asked)
    yield at_most("an hour of the conversation trace simulates in", 120.0, time.process_time() - began, "s")
