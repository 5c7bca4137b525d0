"""What it costs to compose a step: ``python -m benchmarks.bench_planning [--rounds N] [--json]``, times in microseconds.

Each figure is the median over rounds of one step in steady decoding. ``plan`` is what stands between one step's outcome and the next
step's start; ``draft`` runs while the engine computes; ``apply`` takes the outcome in. ``planning`` = plan + draft.

And what it costs to forecast a newcomer's first token, which the server's event loop does for requests with a deadline: the newcomer stands in
the middle of those who wait, each of another rank and length.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.figure import Figure, at_most
from engines.contract import KvGroup, Output, RunnerLimits, StepPlan, StepResult
from engines.sampling.params import SamplingParams
from server.engine import GenerationRequest, PriorityClass
from server.scheduling.batcher import Batcher
from server.scheduling.config import BatcherConfig

BLOCK = 16
NEVER_ENDS = 1_000_000
CROWDS = (10, 100, 500, 10_000)

T = TypeVar("T")


def limits(context: int, running: int) -> RunnerLimits:
    return RunnerLimits(
        vocab_size=50_000,
        block_size=BLOCK,
        block_count=(running + 1) * (-(-context // BLOCK) + 1),
        bytes_per_block=1,
        max_rows=max(running, 64),
        max_step_tokens=8192,
        max_context=context,
        kv_groups=(KvGroup((0,), None, 1),),
    )


EVERY_POLICY: dict[str, Any] = {"budget": "adaptive", "eviction": "cost", "batch_size": 8, "batch_wait": 0.01}
"""Beside what is on by default: shares, tenants, order by work, preemption."""


def mixed(number: int, prompt: tuple[int, ...], max_tokens: int) -> GenerationRequest:
    """One of three classes, seven tenants and as many salts, with deadlines that never come."""
    asked, tenant = request(number, prompt, max_tokens), f"tenant {number % 7}"
    return msgspec.structs.replace(
        asked,
        priority=PriorityClass(number % 3),
        tenant=tenant,
        cache_salt=tenant.encode(),
        deadline=1e9,
        ttft_deadline=1e9,
    )


def request(number: int, prompt: tuple[int, ...], max_tokens: int) -> GenerationRequest:
    return GenerationRequest(
        id=number,
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=SamplingParams(),
        end_ids=(NEVER_ENDS,),
        stop_ids=(),
        priority=PriorityClass.STANDARD,
        tenant="",
        cache_salt=b"",
        arrival=0.0,
        deadline=None,
        ttft_deadline=None,
    )


class Bench:
    """A batcher in steady decoding, with an engine that answers at once."""

    def __init__(self, running: int, waiting: int, generated: int, rounds: int, *, every_policy: bool = False) -> None:
        context = 64 + generated + 2 * rounds
        policies, ask = (EVERY_POLICY, mixed) if every_policy else ({}, request)
        config = BatcherConfig(max_sequences=running, step_tokens=4096, max_partial_prefills=running, **policies)
        self.batcher = Batcher(limits(context, running), fingerprint="bench", config=config)
        for number in range(running + waiting):
            # Different beginnings, so that no one shares blocks.
            self.batcher.add(ask(number, (number % 40_000, *range(31)), context - 32), 0.0)
        while sum(self.batcher.stats().waiting_by_class) > waiting or self.batcher.stats().generated_tokens < running:
            self.step()
        for _ in range(generated):
            self.step()
        self.rounds = rounds

    def step(self) -> tuple[int, int, int]:
        batcher = self.batcher
        plan_ns, plan = timed(lambda: batcher.plan(0.0))
        if plan is None:
            raise RuntimeError("nothing to run")
        draft_ns, _ = timed(batcher.draft)
        result = outcome(plan)
        apply_ns, _ = timed(lambda: batcher.apply(result, 0.0))
        batcher.collect()
        return plan_ns, draft_ns, apply_ns

    def measure(self) -> dict[str, float]:
        samples = [self.step() for _ in range(self.rounds)]
        plan, draft, apply = (median(column) / 1000 for column in zip(*samples, strict=True))
        planning = median(p + d for p, d, _ in samples) / 1000
        figures = {"planning": planning, "plan": plan, "draft": draft, "apply": apply}
        return {name: round(value, 1) for name, value in figures.items()}


def timed(call: Callable[[], T]) -> tuple[int, T]:
    start = perf_counter_ns()
    value = call()
    return perf_counter_ns() - start, value


def outcome(plan: StepPlan) -> StepResult:
    return StepResult(plan.step, [Output(row.sequence, (7,)) for row in plan.rows if row.want is not None])


def planning_us(running: int, waiting: int, generated: int, rounds: int, *, every_policy: bool = False) -> float:
    """Median microseconds to compose a step, with what lives set aside from the garbage collector as the server does."""
    bench = Bench(running, waiting, generated, rounds, every_policy=every_policy)
    gc.collect()
    gc.freeze()
    try:
        return bench.measure()["planning"]
    finally:
        gc.unfreeze()


def prompt_us(tokens: int) -> dict[str, float]:
    """Median microseconds to plan and draft the step that takes a whole prompt: unknown to the cache, and wholly known; and to
    apply its end, which releases its blocks."""
    config = BatcherConfig(max_sequences=1, step_tokens=tokens)
    samples: dict[str, list[int]] = {"miss": [], "hit": [], "release": []}
    for attempt in range(5):
        batcher = Batcher(limits(tokens + 1, 2), fingerprint="bench", config=config)
        for number, name in enumerate(("miss", "hit")):
            batcher.add(request(number, tuple(range(attempt, attempt + tokens)), 1), 0.0)
            plan_ns, plan = timed(lambda batcher=batcher: batcher.plan(0.0))  # type: ignore[misc]
            if plan is None:
                raise RuntimeError("nothing to run")
            draft_ns, _ = timed(batcher.draft)
            result = outcome(plan)
            apply_ns, _ = timed(lambda batcher=batcher, result=result: batcher.apply(result, 0.0))  # type: ignore[misc]
            samples[name].append(plan_ns + draft_ns)
        samples["release"].append(apply_ns)
    return {"prompt_tokens": tokens} | {name: round(median(values) / 1000, 1) for name, values in samples.items()}


def forecasts_us(crowds: tuple[int, ...], rounds: int) -> dict[int, float]:
    """Median microseconds of a forecast, by how many wait; in turn."""
    batchers = {waiting: _crowded(waiting) for waiting in crowds}
    newcomer = msgspec.structs.replace(request(NEVER_ENDS, (1,), 500), arrival=10.0, deadline=1e9, ttft_deadline=1e9)
    samples: dict[int, list[int]] = {waiting: [] for waiting in crowds}
    gc.collect()
    gc.freeze()
    try:
        for _ in range(rounds):
            for waiting, batcher in batchers.items():
                outlook = batcher.outlook()
                spent, _ = timed(lambda: batcher.forecast.check_shortest(newcomer, outlook, 0.0))  # noqa: B023 - called at once
                samples[waiting].append(spent)
    finally:
        gc.unfreeze()
    return {waiting: round(median(spent) / 1000, 1) for waiting, spent in samples.items()}


def _crowded(waiting: int) -> Batcher:
    """64 stream, and so many wait that came over 20 s."""
    longest, lengths = 1000, random.Random(waiting)  # noqa: S311 - replays
    batcher = Bench(64, 0, 10, rounds=longest).batcher
    for number in range(waiting):
        asked = request(1_000 + number, (number, *range(lengths.randrange(longest))), 500)
        batcher.add(msgspec.structs.replace(asked, arrival=20.0 * number / waiting), 0.0)
    return batcher


def figures() -> list[Figure]:
    """In turn, five times each; medians."""
    cases = {"64": (64, 10, 10), "256": (256, 10, 10), "waiting": (64, 10_000, 10), "generated": (64, 10, 10_000)}
    rounds = [
        {
            (name, every): planning_us(*case, rounds=100, every_policy=every)
            for name, case in cases.items()
            for every in (False, True)
        }
        for _ in range(5)
    ]
    costs = [{name: median(one[name, every] for one in rounds) for name in cases} for every in (False, True)]
    return [*_held(costs[0], ""), *_held(costs[1], ", every policy on"), _forecast_held()]


def _forecast_held() -> Figure:
    few, many = forecasts_us((100, 10_000), rounds=300).values()
    # With 100 there are 50 ahead, with 10,000 the 64 that count one by one, and the rest in groups.
    name = "a forecast with 10,000 waiting, of what it costs with 100"
    return at_most(name, 200, 100 * many / few, "%")


def _held(cost: dict[str, float], how: str) -> list[Figure]:
    return [
        at_most(f"planning a step with 64 running{how}, p50", 100, cost["64"], "us"),
        at_most(f"planning a step with 256 running{how}, p50", 500, cost["256"], "us"),
        at_most(
            f"planning with 10,000 waiting{how}, of what it costs with 10", 125, 100 * cost["waiting"] / cost["64"], "%"
        ),
        at_most(
            f"planning after 10,000 tokens{how}, of what it costs after 10",
            125,
            100 * cost["generated"] / cost["64"],
            "%",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    chosen = parser.parse_args()
    sys.setswitchinterval(0.001)
    report: list[dict[str, float]] = []
    cases = [(64, 10, 10), (256, 10, 10), (64, 10_000, 10), (64, 10, 10_000), (1, 10, 10)]
    for running, waiting, generated in cases:
        bench = Bench(running, waiting, generated, chosen.rounds)
        gc.collect()
        gc.freeze()
        report.append({"running": running, "waiting": waiting, "generated": generated, **bench.measure()})
        gc.unfreeze()
    prompts = [prompt_us(tokens) for tokens in (512, 8192)]
    forecasts = [{"waiting": waiting, "forecast": us} for waiting, us in forecasts_us(CROWDS, chosen.rounds).items()]
    if chosen.json:
        print(json.dumps({"steps": report, "prompts": prompts, "forecasts": forecasts}, indent=2))
    else:
        console = Console()
        console.print(_table("a step of steady decoding, us", report), _table("a whole prompt, us", prompts))
        console.print(_table("a forecast, us", forecasts))


def _table(title: str, rows: list[dict[str, float]]) -> Table:
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{value:,}" for value in row.values()))
    return table


if __name__ == "__main__":
    main()
