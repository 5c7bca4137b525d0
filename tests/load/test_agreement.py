"""`plan`, `simulate` and `--find-capacity` mean the same by capacity, and find the same on the simulated engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtest.planner import verify
from loadtest.planner.plan import Planner, Wanted
from loadtest.planner.traffic import read_traffic
from loadtest.simulation.profile import read_profile
from loadtest.slo import parse_slo
from loadtest.workload import TraceUse, Workload

WANTED = Wanted(slo=parse_slo("ttft=500ms,itl=50ms"))


def write_trace(path: Path, *, prompt: float, output: float, burstiness: float, count: int) -> None:
    """As long and as bursty as Azure's traces are: lengths log-normal, gaps gamma-distributed."""
    rng = np.random.default_rng(11)
    prompts, outputs = (
        np.clip(mean * rng.lognormal(-0.32, 0.8, count), 1, 8000).astype(int) for mean in (prompt, output)
    )
    times = np.cumsum(rng.gamma(burstiness, 1 / burstiness, count))
    lines = [
        f"2023-11-16 18:{int(at // 60) % 60:02d}:{at % 60:09.6f}0,{p},{o}"
        for at, p, o in zip(times, prompts, outputs, strict=True)
    ]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "output", "burstiness"),
    [pytest.param(1155, 211, 0.85, id="conversation"), pytest.param(2048, 28, 0.2, id="code")],
)
@pytest.mark.parametrize("profile", ["h100-8b-tp1"])
def test_plan_and_simulator_agree(
    tmp_path: Path, profile: str, prompt: float, output: float, burstiness: float
) -> None:
    path = tmp_path / "trace.csv"
    write_trace(path, prompt=prompt, output=output, burstiness=burstiness, count=800)
    workload, engine = Workload(trace=TraceUse(str(path))), read_profile(profile)
    traffic = read_traffic(workload)
    planner = Planner(verify.profile_model(engine), traffic, WANTED)
    plan = planner.measured(engine.name, verify.profile_bill(engine), verify.profile_steps(engine))
    check = verify.check_plan(plan, WANTED, workload, traffic)
    assert check.capacity > 0
    assert plan.chosen.capacity == pytest.approx(check.capacity, rel=0.15)
    assert check.estimated == pytest.approx(check.capacity, rel=0.15)


def test_a_traces_beginning_keeps_the_whole_traces_clock(tmp_path: Path) -> None:
    """So that `plan --requests N` and `load --find-capacity --requests N` mean the same by a rate."""
    path = tmp_path / "trace.csv"
    write_trace(path, prompt=100, output=10, burstiness=0.2, count=800)
    whole = read_traffic(Workload(trace=TraceUse(str(path))))
    head = read_traffic(Workload(trace=TraceUse(str(path)), requests=50))
    assert head.rate == whole.rate
    assert head.gaps == whole.gaps[:50]
    assert head.pace == pytest.approx(whole.head(50).pace) != pytest.approx(whole.pace)
