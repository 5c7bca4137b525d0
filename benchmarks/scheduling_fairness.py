"""Scheduling figures about who waits for whom: long prompts, classes, tenants. In virtual time; see bench_scheduling.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import msgspec

from benchmarks.figure import Figure, at_least, at_most
from benchmarks.scheduling_scenes import (
    CAPS,
    CARRIED,
    CONFIG,
    LONGEST_ANSWER,
    LONGEST_PROMPT,
    OLD,
    chats,
    itls,
    longest_wait,
    rows,
    run,
    run_rows,
    served,
    ttfts,
    waits,
)
from loadtest.record import RequestRecord
from loadtest.traces import RecordingRow
from server.scheduling.reception import OUTPUT_WEIGHT

SPAN = (20.0, 120.0)
"""Seconds between which shares and throughput are measured: the room has filled, and arrivals go on."""
SHARES = {"interactive": 1.0 - CONFIG.standard_share - CONFIG.batch_share, "batch": CONFIG.batch_share}
"""What each class of the scenes gets at least, of all that is worked off."""


def long_prompt() -> Iterator[Figure]:
    """Chats at half of what is carried for two minutes; the same with two 100,000-token prompts."""
    alone = rows(chats(CARRIED / 2, 120.0))
    documents = [RecordingRow(at, 100_000, 200) for at in (20.0, 70.0)]
    without, mixed = run_rows(alone).result.records, run_rows(alone + documents).result.records
    others = [record for record in mixed if record.prompt_tokens < 50_000]
    long = [record for record in mixed if record.prompt_tokens >= 50_000]
    name = "100k-token prompts among chats"
    yield at_most(f"{name}: p99 ITL of the others, times without", 2.0, itls(others)[1] / itls(without)[1], "")
    yield at_most(f"{name}: p99 TTFT of the others, times without", 1.5, ttfts(others)[1] / ttfts(without)[1], "")
    yield at_least(f"{name}: share of the long ones answered", 1.0, sum(r.ok for r in long) / len(long), "")


def classes() -> Iterator[Figure]:
    """Three interactive requests among ten, twice what is carried, for two minutes; caps equal, first come first served beside it."""
    asked = chats(2 * CARRIED, 120.0, classes={"interactive": 0.3, "batch": 0.7}, drain=900.0)
    new = run(asked, admission=CAPS).result.records
    # The same requests, all of one class, in the order in which they come.
    old = run(msgspec.structs.replace(asked, classes={"standard": 1.0}), OLD, admission=CAPS).result.records
    chosen = {record.session for record in new if record.priority == "interactive"}
    mine = [[r for r in each if r.session in chosen and r.ttft is not None] for each in (new, old)]
    name = "interactive class at 2x overload"
    yield at_least(f"{name}: p50 TTFT of who is let in, times better", 3.0, ttfts(mine[1])[0] / ttfts(mine[0])[0], "")
    yield at_most(f"{name}: throughput lost", 0.05, 1.0 - served(new, *SPAN) / served(old, *SPAN), "")
    yield from _shares_and_waits(name, new)


def flood_of_interactive() -> Iterator[Figure]:
    """Interactive requests alone are twice what is carried; six requests a second are batch work."""
    scene = rows(chats(2 * CARRIED, 120.0), priority="interactive") + rows(chats(6.0, 120.0, seed=8), priority="batch")
    yield from _shares_and_waits(
        "batch class under an interactive flood", run_rows(scene, admission=CAPS).result.records
    )


def _shares_and_waits(name: str, records: list[RequestRecord]) -> Iterator[Figure]:
    whole = served(records, *SPAN)
    batch = [record for record in records if record.priority == "batch"]
    yield at_least(f"{name}: batch share of the tokens", CONFIG.batch_share, served(batch, *SPAN) / whole, "")
    rate = whole / (SPAN[1] - SPAN[0])
    worst = max(
        max(waits(r for r in records if r.priority == level)) / longest_wait(share, rate)
        for level, share in SHARES.items()
    )
    yield at_most(f"{name}: longest wait of whoever was let in, of its class's bound", 1.0, worst, "")


def tenants() -> Iterator[Figure]:
    """A quiet tenant beside one that floods at ten times its rate, in each mix of the two classes that they may try; then both with
    more than their half. Who was refused waits for ever."""
    for own, other in product(("standard", "interactive"), repeat=2):
        quiet = rows(chats(CARRIED / 5, 120.0), tenant="quiet", priority=own)
        flood = rows(chats(2 * CARRIED, 120.0, seed=8), tenant="flood", priority=other)
        alone = run_rows(quiet).result.records
        beside = run_rows(quiet + flood, admission=CAPS).result.records
        mine = [record for record in beside if record.tenant == "quiet"]
        name = f"quiet tenant, {own}, beside a flood, {other}: p99 TTFT, times alone"
        yield at_most(name, 2.0, ttfts(mine)[1] / ttfts(alone)[1], "")


def backlogged() -> Iterator[Figure]:
    """Both tenants ask for more than their half, one of them ten times as much, and nobody is refused: the virtual token counter's
    bound, 2 * max(longest prompt, output weight * tokens that the seats' answers can have)."""
    bound = 2 * max(LONGEST_PROMPT, OUTPUT_WEIGHT * CONFIG.max_sequences * LONGEST_ANSWER)
    for level in ("standard", "interactive"):
        both = rows(chats(0.75 * CARRIED, 60.0), tenant="a", priority=level)
        both += rows(chats(7.5 * CARRIED, 60.0, seed=8), tenant="b", priority=level)
        records = run_rows(both, forecast=False).result.records
        got = {name: _service([r for r in records if r.tenant == name], 10.0, 60.0) for name in "ab"}
        name = f"two backlogged tenants, both {level}: difference of service in 50 s"
        yield at_most(name, bound, abs(got["a"] - got["b"]), "tokens")


def _service(records: list[RequestRecord], began: float, ended: float) -> float:
    """Weighted tokens, as the counters count them."""
    outputs = sum(
        count
        for record in records
        for at, count in zip(record.times, record.tokens, strict=True)
        if began <= at < ended
    )
    return served(records, began, ended) + (OUTPUT_WEIGHT - 1.0) * outputs
