"""Nothing in a step costs in proportion to what waits or what was generated: counted in calls, not in seconds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType

from engines.contract import KvGroup, Output, RunnerLimits, StepResult
from server.scheduling.batcher import Batcher
from server.scheduling.config import BatcherConfig
from tests.scheduling.world import make_request

BLOCK = 4
ROUNDS = 4 * BLOCK


def make_batcher(
    running: int, waiting: int, generated: int, *, seats: int | None = None, blocks: int = 20_000
) -> Batcher:
    """``running`` sequences in steady decoding; ``seats`` beyond them stay empty until somebody is added."""
    limits = RunnerLimits(
        vocab_size=100_000,
        block_size=BLOCK,
        block_count=blocks,
        bytes_per_block=1,
        max_rows=64,
        max_step_tokens=1024,
        max_context=4096,
        kv_groups=(KvGroup((0,), None, 1),),
    )
    batcher = Batcher(limits, fingerprint="x", config=BatcherConfig(max_sequences=seats or running))
    for number in range(running + waiting):
        batcher.add(make_request(number, (number, 1, 2, 3), 4000, end_ids=(), deadline=1e9), 0.0)
    for _ in range(4 + generated):
        step(batcher)
    assert batcher.running == running
    return batcher


def step(batcher: Batcher) -> None:
    plan = batcher.plan(0.0)
    assert plan is not None
    batcher.draft()
    batcher.apply(StepResult(plan.step, [Output(row.sequence, (7,)) for row in plan.rows if row.want]), 0.0)
    batcher.collect()


def calls(batcher: Batcher) -> int:
    """Function calls, Python's and C's, of a few steps."""

    def rounds() -> None:
        for _ in range(ROUNDS):
            step(batcher)

    return calls_of(rounds)


def calls_of(work: Callable[[], object]) -> int:
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    # A collection in between would call whatever else listens to it.
    gc.disable()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_a_step_costs_the_same_whether_ten_or_two_thousand_wait() -> None:
    assert calls(make_batcher(8, 10, 8)) == calls(make_batcher(8, 2000, 8))


def test_a_step_costs_the_same_after_ten_tokens_and_after_two_thousand() -> None:
    assert calls(make_batcher(8, 10, 8)) == calls(make_batcher(8, 10, 2000))


def test_a_step_costs_a_few_calls_for_each_running_sequence() -> None:
    eight, sixteen = calls(make_batcher(8, 10, 8)), calls(make_batcher(16, 10, 8))
    each = (sixteen - eight) / 8 / ROUNDS
    assert each < 25, f"{each} calls a sequence and step"


def forecast_calls(waiting: int) -> int:
    """Function calls of a forecast for a newcomer in the middle of those who wait, of unequal ranks."""
    batcher = make_batcher(8, 0, 8)
    for number in range(waiting):
        batcher.add(make_request(100 + number, (number, 1, 2, 3), 9, arrival=10.0 * number / waiting), 0.0)
    newcomer = make_request(1_000_000, (9, 1, 2, 3), 9, arrival=5.0, ttft_deadline=1e9)
    outlook = batcher.outlook()
    return calls_of(lambda: batcher.forecast.check(newcomer, 4, outlook, 0.0))


def test_a_forecast_costs_what_the_nearest_cost_and_not_what_waits() -> None:
    # Forty times as many: the tree of sums is a level deeper.
    assert 100 < forecast_calls(20_000) < 2 * forecast_calls(500)


def test_a_prompt_that_does_not_fit_is_not_measured_again_and_again() -> None:
    """3,600 tokens of the next in the room are cached, and it still does not fit: looking once is enough."""
    counts = []
    for waiting in (1, 300):
        batcher = make_batcher(8, 0, 8, seats=9, blocks=1040)
        batcher.add(make_request(99, range(1, 3602), 0), 0.0)
        while batcher.running > 8 or batcher.stats().waiting_tokens:
            step(batcher)
        for number in range(100, 100 + waiting):
            batcher.add(make_request(number, range(1, 4000), 90), 0.0)
        step(batcher)
        assert batcher.running == 8
        counts.append(calls(batcher))
        assert batcher.running == 8
    assert counts[0] == counts[1]
    assert counts[0] < calls(make_batcher(8, 0, 8)) + 64 * ROUNDS
