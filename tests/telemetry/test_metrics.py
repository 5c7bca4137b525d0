"""Every documented metric moves, and means what it says."""

from __future__ import annotations

import gc
import json

import grpc
import pytest

from protos.firsttoken.v1 import generation_pb2 as pb
from server.errors import InternalError, OverloadedError, ReaderStalledError, RequestCancelledError
from server.telemetry.metrics import CACHE_RESTORES, CACHE_SAVES, CLASSES
from server.telemetry.requests import OUTCOMES, outcome_of
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import collect, request, running, until

# What one request must move. Values are those after one request of 5 prompt and 20 output tokens, None = any above 0.
MOVED: dict[str, float | None] = {
    "firsttoken_requests_total{class=interactive,outcome=ok}": 1,
    "firsttoken_rpcs_total{code=OK,method=firsttoken.v1.Generation/Generate}": 3,  # the warm-up is two
    "firsttoken_completion_tokens_total{class=interactive}": 20,
    "firsttoken_time_to_first_token_seconds_count{class=interactive}": 1,
    "firsttoken_time_to_first_token_seconds_sum{class=interactive}": None,
    "firsttoken_inter_token_seconds_count{class=interactive}": None,
    "firsttoken_inter_token_seconds_sum{class=interactive}": None,
    "firsttoken_queue_seconds_count{class=interactive}": 1,
    "firsttoken_request_seconds_count{class=interactive}": 1,
    "firsttoken_request_seconds_sum{class=interactive}": None,
    "firsttoken_event_loop_lag_seconds_count": None,
    "firsttoken_interpreter_wait_seconds_count": None,
    **{f"firsttoken_client_timeout_seconds{{class={name}}}": 600 for name in CLASSES},
    "firsttoken_busy_ratio": None,
    "firsttoken_step_cost_error_ratio": None,
    "firsttoken_step_predicted_seconds_total": None,
    "firsttoken_startup_seconds{phase=load}": None,
    "firsttoken_startup_seconds{phase=warm_up}": None,
    "firsttoken_startup_seconds{phase=ready}": None,
    "firsttoken_gc_pauses_total{generation=2}": None,
    "firsttoken_gc_pause_seconds_total{generation=2}": None,
    "firsttoken_gc_longest_pause_seconds": None,
    "process_cpu_seconds_total": None,
    "process_resident_memory_bytes": None,
    "process_virtual_memory_bytes": None,
    "process_start_time_seconds": None,
    "process_open_fds": None,
    "process_max_fds": None,
    "firsttoken_ready": 1,
    "firsttoken_engine_alive": 1,
    "firsttoken_engine_idle_seconds": None,
    "firsttoken_steps_total": None,
    "firsttoken_prompt_tokens_total": None,
    "firsttoken_computed_tokens_total": None,
    "firsttoken_generated_tokens_total": None,
    "firsttoken_kv_blocks{state=free}": None,
    "firsttoken_step_seconds_total{part=plan}": None,
    "firsttoken_step_seconds_total{part=engine}": None,
    "firsttoken_step_seconds_total{part=sample}": None,
    "firsttoken_step_seconds_total{part=deliver}": None,
}
# Counters whose labels appear with their first count: other tests move them.
WHEN_NEEDED = {
    "firsttoken_rejections_total",
    "firsttoken_authentication_failures_total",
    "firsttoken_reloads_total",
    "firsttoken_trace_spans_total",
}
# What is there, and moves only while something runs, or when it is needed: the other tests move them.
PRESENT = {
    "firsttoken_open_streams",
    "firsttoken_running_sequences",
    "firsttoken_waiting_tokens",
    "firsttoken_queued_requests",
    *(f"firsttoken_gc_pauses_total{{generation={generation}}}" for generation in (0, 1)),
    *(f"firsttoken_gc_pause_seconds_total{{generation={generation}}}" for generation in (0, 1)),
    "firsttoken_kv_utilisation_ratio",
    "firsttoken_prefix_hit_tokens_total",
    "firsttoken_discarded_tokens_total",
    "firsttoken_preemptions_total",
    "firsttoken_kv_evictions_total",
    "firsttoken_kv_pinned_blocks",
    "firsttoken_cache_saved_blocks",
    "firsttoken_cache_restored_blocks",
    *(f"firsttoken_cache_saves_total{{outcome={outcome}}}" for outcome in CACHE_SAVES),
    *(f"firsttoken_cache_restores_total{{outcome={outcome}}}" for outcome in CACHE_RESTORES),
    "firsttoken_held_calls_total",
    "firsttoken_held_seconds_total",
    *(f"firsttoken_waiting_requests{{class={name}}}" for name in CLASSES),
    *(f"firsttoken_kv_blocks{{state={state}}}" for state in ("cached", "in_use", "quarantined")),
}


async def test_every_metric_moves_after_one_request_case_J1_J3() -> None:
    async with running() as server:
        await collect(server.generation.Generate(request("Hello", max_tokens=20)))
        gc.collect()
        samples = await server.metrics()
        sampled = ("firsttoken_event_loop_lag_seconds_count", "firsttoken_interpreter_wait_seconds_count")
        while not all(samples[name] for name in sampled):
            samples = await server.metrics()
        for name, value in MOVED.items():
            assert samples[name] > 0, name
            assert value is None or samples[name] == value, name
        assert set(samples) >= PRESENT
        families = {name.split("{")[0] for name in samples}
        documented = {name.split("{")[0] for name in (*MOVED, *PRESENT)}
        ignored = ("_created", "_bucket", "_sum", "_info")
        assert {name for name in families - documented if not name.endswith(ignored)} <= WHEN_NEEDED


async def test_the_warm_up_is_no_request_in_the_metrics() -> None:
    async with running() as server:
        samples = await server.metrics()
        assert samples["firsttoken_startup_seconds{phase=warm_up}"] > 0
        assert samples["firsttoken_requests_total{class=interactive,outcome=ok}"] == 0
        assert "firsttoken_time_to_first_token_seconds_count{class=interactive}" in samples
        assert samples["firsttoken_time_to_first_token_seconds_count{class=interactive}"] == 0


async def test_a_cancel_is_no_success_case_D13() -> None:
    async with running(FakeEngine(step_seconds=0.01)) as server:
        call = server.generation.Generate(request(max_tokens=400, priority=pb.PRIORITY_BATCH))
        await call.read()
        samples = await server.metrics()
        assert (samples["firsttoken_open_streams"], samples["firsttoken_running_sequences"]) == (1, 1)
        assert samples["firsttoken_kv_utilisation_ratio"] == 1 / 64
        call.cancel()
        await until(lambda: not server.engine.live)
        await until(lambda: not server.app._open_streams())
        samples = await server.metrics()
        assert samples["firsttoken_requests_total{class=batch,outcome=cancelled}"] == 1
        assert samples["firsttoken_requests_total{class=batch,outcome=ok}"] == 0
        assert samples["firsttoken_open_streams"] == 0
        assert samples["firsttoken_kv_utilisation_ratio"] == 0
        assert samples["firsttoken_request_seconds_count{class=batch}"] == 0


async def test_refusals_are_counted_by_reason_case_E9() -> None:
    async with running(FakeEngine(max_waiting=1, step_seconds=0.01), lifecycle__warm_up=False) as server:
        blocker = server.generation.Generate(request(max_tokens=400))
        await blocker.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(server.generation.Generate(request(priority=pb.PRIORITY_STANDARD)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        samples = await server.metrics()
        assert samples["firsttoken_rejections_total{reason=waiting_requests}"] == 1
        assert samples["firsttoken_requests_total{class=standard,outcome=overloaded}"] == 1
        blocker.cancel()


async def test_one_line_a_request_and_no_word_of_what_was_said(capfd: pytest.CaptureFixture[str]) -> None:
    async with running(
        FakeEngine(output=b"OUTPUTWORD"), telemetry__log_level="info", telemetry__log_format="json"
    ) as server:
        call = server.generation.Generate(request("PROMPTWORD", max_tokens=10, cache_salt="SALTWORD"))
        await collect(call)
        public_id = dict(await call.initial_metadata())["firsttoken-request-id"]
        with pytest.raises(grpc.aio.AioRpcError):
            await collect(server.generation.Generate(request("PROMPTWORD", stop=pb.Stop(strings=[""]))))
    err = capfd.readouterr().err
    lines = [json.loads(line) for line in err.splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["outcome"] for line in requests] == ["ok", "invalid"]
    assert requests[1]["field"] == "stop.strings[0]"
    assert (requests[0]["prompt_tokens"], requests[0]["completion_tokens"]) == (10, 10)
    assert (requests[0]["priority"], requests[0]["request"]) == ("interactive", public_id)
    assert not any(word in err for word in ("PROMPTWORD", "OUTPUTWORD", "SALTWORD"))


def test_outcomes() -> None:
    assert outcome_of(None) == "ok"
    assert outcome_of(ReaderStalledError("x")) == "stalled"
    assert outcome_of(RequestCancelledError("x")) == "cancelled"
    assert outcome_of(OverloadedError("x", reason="r", retry_after=1)) == "overloaded"
    assert outcome_of(InternalError("x")) == outcome_of(ValueError("x")) == "error"
    assert len(set(OUTCOMES)) == len(OUTCOMES)
