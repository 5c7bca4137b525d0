"""The flight recorder: what it keeps, and what it must not."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import msgspec
import pytest

from engines.contract import EngineError, Row, Sample, SequenceSpec, StepPlan, StepResult
from engines.sampling.params import SamplingParams
from protos.firsttoken.v1 import operations_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from protos.firsttoken.v1.operations_pb2_grpc import OperationsStub
from server.flight import FlightRecorder
from server.loading import load_model
from server.post_mortem import leave_behind, post_mortem, thread_stacks
from server.scheduling.counters import SchedulingStats
from tests.e2e.whole_server import ENGINES
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import collect, request, running, started

BEFORE = SchedulingStats(
    waiting_by_class=(1, 2, 3),
    waiting_tokens=4,
    running=5,
    blocks_free=6,
    blocks_cached=0,
    blocks_in_use=0,
    blocks_quarantined=0,
    steps=0,
    prompt_tokens=0,
    cached_tokens=0,
    computed_tokens=0,
    generated_tokens=0,
    discarded_tokens=0,
    preemptions=7,
)
SECRET = 31337


def plan(step: int) -> StepPlan:
    tokens, table = array("i", [SECRET] * 9), array("i", [1, 2])
    rows = [Row(1, tokens, 3, (table,), None), Row(2, None, 40, (table,), Sample())]
    return StepPlan(step, rows, opened=[SequenceSpec(1, 0, SamplingParams(), tokens)], closed=[9])


def test_a_step_is_lengths_places_and_times_and_no_token() -> None:
    now = [100.0]
    recorder = FlightRecorder(lambda: now[0], kept=3)
    recorder.started(plan(1), BEFORE)
    recorder.ended(StepResult(1, [], 0.5, 0.25))
    recorder.started(plan(2), BEFORE)
    now[0] = 103.0
    recorder.failed(EngineError("prompt text"))
    recorder.started(plan(3), BEFORE)
    first, failed, current = recorder.records()
    assert (first.step, first.age, first.outcome) == (1, 3.0, "ok")
    assert (first.engine_seconds, first.sample_seconds) == (0.5, 0.25)
    assert [(row.sequence, row.new_tokens, row.past, row.blocks, row.want) for row in first.rows] == [
        (1, 9, 3, 2, ""),
        (2, 1, 40, 2, "sample"),
    ]
    assert (first.opened, first.closed, first.waiting_by_class, first.preemptions) == ((1,), (9,), (1, 2, 3), 7)
    assert (failed.outcome, current.outcome) == ("failed: EngineError", "running")
    told = msgspec.json.encode(recorder.records()).decode()
    assert str(SECRET) not in told
    assert "prompt text" not in told


def test_only_the_last_are_kept() -> None:
    recorder = FlightRecorder(kept=3)
    for step in range(10):
        recorder.started(plan(step), BEFORE)
    assert [record.step for record in recorder.records()] == [7, 8, 9]
    recorder.answered(4, 0.1, BEFORE)
    assert recorder.records()[-1].responses == 4


async def test_operators_see_what_a_real_scheduler_did() -> None:
    """On each engine: steps that add up to the request's tokens, oldest first."""
    for engine in ENGINES:
        async with started(load_model, engine__directory=f"{engine}:instant") as (_, channel, _over):
            _, _, final = await collect(GenerationStub(channel).Generate(request("Hello there", max_tokens=12)))
            tokens = final.usage.completion_tokens
            operations = OperationsStub(channel)
            steps = (await operations.GetSteps(pb.GetStepsRequest())).steps
            assert [step.age for step in steps] == sorted((step.age for step in steps), reverse=True)
            assert {step.outcome for step in steps} == {"ok"}
            assert tokens > 1
            if any(step.rows for step in steps):
                last = (await operations.GetSteps(pb.GetStepsRequest(last=2))).steps
                assert [step.step for step in last] == [step.step for step in steps[-2:]]
                assert sum(row.want == "sample" for step in steps for row in step.rows) >= tokens
            else:
                assert sum(step.responses for step in steps) >= tokens


def outer() -> dict[str, list[str]]:
    prompt = "a prompt in a local variable"
    assert prompt
    return thread_stacks()


def test_stacks_name_functions_and_no_variable() -> None:
    stacks = outer()
    mine = next(stack for name, stack in stacks.items() if name.startswith("MainThread"))
    assert any(line.endswith(" outer") for line in mine)
    assert "a prompt in a local variable" not in str(stacks)


async def test_a_hung_engine_leaves_stacks_and_steps_behind_case_B7_K2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine()
    flags = {"engine__stuck_after": 0.3, "telemetry__crash_directory": tmp_path / "crashes"}
    async with running(engine, telemetry__log_format="json", **flags) as server:  # type: ignore[arg-type]
        engine.hang()
        assert await server.over == 1
    (file,) = (tmp_path / "crashes").iterdir()
    found = json.loads(file.read_bytes())
    assert "stuck" in found["why"]
    assert any("fake_engine.py" in line for stack in found["stacks"].values() for line in stack)
    events = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert {"thread stack", "last steps", "post-mortem written"} <= {event["event"] for event in events}


def test_a_full_disk_does_not_stop_the_ending(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert leave_behind(post_mortem(FakeEngine(), "died"), str(blocked / "inside")) is None
    assert leave_behind(post_mortem(FakeEngine(), "died"), "") is None
