"""One capacity, found in three ways: ``python -m benchmarks.bench_capacity TRACE [--slo SLO] [--requests N] [--scale-lengths X]``.

A simulated engine behind the real server, over the real wire, in real time (`load --find-capacity`); the real scheduler with the same
engine in virtual time (`simulate`); and the planner's theory (`plan`). The same first N requests of the trace, the same objective,
the same seats and steps. With ``--engine DIR`` the real engine behind the server, beside what its manifest's step times predict.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.served import serving
from loadtest.capacity import Capacity, Search, find_capacity
from loadtest.planner import verify
from loadtest.planner.service import Replica
from loadtest.planner.traffic import Traffic, read_traffic
from loadtest.run import run_load
from loadtest.simulation.profile import Profile, read_profile
from loadtest.simulation.simulate import Setup, simulate
from loadtest.slo import parse_slo
from loadtest.transports.base import Target
from loadtest.workload import TraceUse, Workload
from server.scheduling.config import BatcherConfig

SIMULATED = {"embedded": "laptop"}
"""The simulator's profiles, and what the server calls the same step times."""
SEATS, STEP_TOKENS = 32, 512


def served(engine: str, workload: Workload, search: Search) -> Capacity:
    """Against the real server."""
    flags = ("--scheduler.max_sequences", str(SEATS), "--scheduler.step_tokens", str(STEP_TOKENS))
    with serving(engine, *flags, "--telemetry.log_requests", "false") as server:
        target = Target("native", server.address)
        return find_capacity(workload, search, lambda each: run_load(each, target))


def planned(profile: Profile, traffic: Traffic, search: Search) -> float:
    """By the planner's theory."""
    steps = verify.profile_steps(profile)
    replica = Replica(steps, profile.kv_tokens, SEATS, search.slo, search.attainment, STEP_TOKENS)
    return replica.capacity(traffic)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--slo", default="ttft=2s,itl=100ms")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--scale-lengths", type=float, default=0.1)
    parser.add_argument("--engine", type=Path, help="a built engine instead of a simulated one")
    chosen = parser.parse_args()
    name = "embedded" if chosen.engine is None else str(chosen.engine)
    engine = f"simulated:{SIMULATED['embedded']}" if chosen.engine is None else name
    profile = read_profile(name)
    workload = Workload(trace=TraceUse(str(chosen.trace), scale=chosen.scale_lengths), requests=chosen.requests)
    traffic = read_traffic(workload)
    search = Search(parse_slo(chosen.slo), precision=0.1, factor=1.5)
    said = planned(profile, traffic, search)
    search = Search(search.slo, start=said, precision=0.1, factor=1.5)
    setup = Setup(profile, BatcherConfig(max_sequences=SEATS, step_tokens=STEP_TOKENS))
    replayed = find_capacity(workload, search, lambda each: simulate(each, setup).result)
    print(f"plan      {said:7.3f} requests/s")
    print(f"simulate  {replayed.rate:7.3f} ({replayed.low:.3f} to {replayed.high:.3f})")
    sys.stdout.flush()
    real = served(engine, workload, search)
    print(f"served    {real.rate:7.3f} ({real.low:.3f} to {real.high:.3f}), {engine}")


if __name__ == "__main__":
    main()
