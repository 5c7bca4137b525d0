"""The load tool against the server itself, over a simulated engine whose speed is known."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import pytest

from engines import simulated
from loadtest.arrivals import Arrivals, constant_rate
from loadtest.capacity import Search, find_capacity
from loadtest.distributions import Distribution
from loadtest.run import RunResult, run_load
from loadtest.slo import Slo
from loadtest.transports.base import Target
from loadtest.workload import Lengths, Workload
from tests.e2e.whole_server import ENGINES, serving

OUTPUT = 24
PROFILE = "laptop"
PROFILE_STEP_SECONDS = 0.008
"""No step of the profile is faster: 9.8 ms and five in a hundred of noise."""


def lengths() -> Lengths:
    return Lengths(Distribution("constant", {"value": 16.0}), Distribution("constant", {"value": float(OUTPUT)}))


@pytest.mark.parametrize("engine", ENGINES)
async def test_outputs_have_the_workloads_length_unless_they_may_end_early(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "SimulatedShape", partial(simulated.SimulatedShape, end_rate=0.1))
    workload = Workload(concurrency=8, requests=32, lengths=lengths())
    async with serving(engine, lifecycle__warm_up=False) as (app, _):
        target = Target("native", f"127.0.0.1:{app.grpc_port}")
        whole = await asyncio.to_thread(run_load, workload, target)
        early = await asyncio.to_thread(run_load, msgspec.structs.replace(workload, ignore_end=False), target)
    assert [record.usage.completion_tokens for record in whole.records] == [OUTPUT] * 32
    assert min(record.usage.completion_tokens or 0 for record in early.records) < OUTPUT
    assert {record.status for record in (*whole.records, *early.records)} == {"OK"}


async def test_no_capacity_is_found_beyond_what_the_engine_can() -> None:
    """One seat and OUTPUT steps a request bound the rate, however slow the machine; half as much again is for a probe too short to
    queue for as long as the objective allows."""
    workload = Workload(arrivals=Arrivals(constant_rate(1.0)), duration=4.0, lengths=lengths())
    async with serving("simulated", PROFILE, scheduler__max_sequences=1, lifecycle__warm_up=False) as (app, _):
        target = Target("native", f"127.0.0.1:{app.grpc_port}")

        def measure(probed: Workload) -> RunResult:
            return run_load(probed, target)

        search = Search(Slo(e2e=1.5), start=1.0, precision=0.4)
        found = await asyncio.to_thread(find_capacity, workload, search, measure)
    assert found.bracketed
    assert 0 < found.low <= found.rate <= 1.5 / (OUTPUT * PROFILE_STEP_SECONDS)
