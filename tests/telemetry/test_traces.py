"""Traces reach a real OTLP collector, joined to their callers', whatever becomes of the requests; and no collector can do harm."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import grpc
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.proto.trace.v1.trace_pb2 import Status as SpanStatus

from protos.firsttoken.v1 import generation_pb2 as pb
from server.config import TelemetryConfig
from server.telemetry import span_queue
from server.telemetry.otel import OtlpTracer
from server.telemetry.span_queue import SpanQueue
from server.telemetry.trace import SpanSketch, make_tracer
from tests.e2e.whole_server import serving
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import collect, request, running, until
from tests.telemetry.collector import Collector, collecting, facts

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_queue, "LINGER", 0.01)


def traced(collector: Collector, **flags: object) -> dict[str, Any]:
    return {"telemetry__otlp_endpoint": collector.endpoint, "telemetry__trace_share": 0, **flags}


def caller(value: str = SAMPLED) -> tuple[tuple[str, str], ...]:
    return (("traceparent", value), ("tracestate", "vendor=1"))


async def test_a_request_is_a_span_in_its_callers_trace_with_its_parts_inside() -> None:
    with collecting() as collector:
        async with running(**traced(collector)) as server:
            call = server.generation.Generate(
                request("PROMPTWORD", max_tokens=20, request_id="mine"),
                metadata=(*caller(), ("authorization", "SECRET")),
            )
            await collect(call)
        (root,) = collector.roots()
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, CALLER)
    assert root.trace_state == "vendor=1"
    assert root.kind == Span.SPAN_KIND_SERVER
    said = facts(root)
    assert (said["firsttoken.request_id"], said["firsttoken.outcome"]) == ("mine", "ok")
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (10, 20)
    assert said["gen_ai.response.finish_reasons"] == ["length"]
    inside = collector.inside(root)
    assert sorted(inside) == ["decode", "deliver", "prefill", "queue", "tokenize"]
    for (part,) in inside.values():
        assert root.start_time_unix_nano <= part.start_time_unix_nano <= part.end_time_unix_nano
        assert part.end_time_unix_nano <= root.end_time_unix_nano
        assert part.trace_id == root.trace_id
    order = [inside[name][0] for name in ("tokenize", "queue", "prefill", "decode")]
    assert all(a.end_time_unix_nano <= b.start_time_unix_nano + 1 for a, b in pairwise(order))
    assert collector.resource["service.name"] == "firsttoken"
    everything = repr(collector.spans) + repr(collector.resource)
    assert not any(word in everything for word in ("PROMPTWORD", "SECRET", "quick brown"))


async def test_the_callers_word_goes_before_the_share() -> None:
    with collecting() as collector:
        async with running(**traced(collector, telemetry__trace_share=1)) as server:
            await collect(server.generation.Generate(request(max_tokens=3), metadata=caller(UNSAMPLED)))
            await collect(server.generation.Generate(request(max_tokens=3, request_id="own")))
            await collect(server.generation.Generate(request(max_tokens=3, request_id="bad"), metadata=caller("junk")))
        named = {facts(root)["firsttoken.request_id"]: root for root in collector.roots()}
    assert set(named) == {"own", "bad"}  # the unsampled one is nowhere
    assert all(not root.parent_span_id and root.trace_id.hex() != TRACE for root in named.values())


async def test_refusals_cancels_and_errors_are_traced_as_what_they_are() -> None:
    with collecting() as collector:
        async with running(FakeEngine(step_seconds=0.01), **traced(collector)) as server:
            generate = server.generation.Generate
            with pytest.raises(grpc.aio.AioRpcError):
                await collect(generate(request(stop=pb.Stop(strings=[""])), metadata=caller()))
            leaving = generate(request(max_tokens=400), metadata=caller())
            await leaving.read()
            leaving.cancel()
            with pytest.raises(grpc.aio.AioRpcError):
                await collect(generate(request(max_tokens=400), metadata=caller(), timeout=1.0))
            await until(lambda: not server.engine.live)
            dying = generate(request(max_tokens=400), metadata=caller())
            await dying.initial_metadata()
            server.app._fail("the test says so")
            # Read to the end: gRPC tells a status only after all that came before it was taken.
            with pytest.raises(grpc.aio.AioRpcError) as died:
                await collect(dying)
            assert died.value.code() is grpc.StatusCode.UNAVAILABLE
        ended = {facts(root)["firsttoken.outcome"]: root for root in collector.roots()}
    assert set(ended) == {"invalid", "cancelled", "deadline", "unavailable"}
    assert facts(ended["invalid"])["firsttoken.field"] == "stop.strings[0]"
    faults = {outcome for outcome, root in ended.items() if root.status.code == SpanStatus.STATUS_CODE_ERROR}
    assert faults == {"deadline", "unavailable"}  # what gRPC's conventions call the server's
    assert all(facts(root)["error.type"] == outcome for outcome, root in ended.items())
    assert "decode" in collector.inside(ended["cancelled"])


async def test_a_prompts_chunks_are_spans_inside_its_prefill() -> None:
    with collecting() as collector:
        async with serving("simulated", **traced(collector, scheduler__step_tokens=64)) as (_, stub):
            await collect(stub.Generate(request("x" * 150, max_tokens=4), metadata=caller()))
        (root,) = collector.roots()
        (prefill,) = collector.inside(root)["prefill"]
        chunks = collector.inside(prefill)["prefill.chunk"]
    said = [(facts(chunk)["firsttoken.past"], facts(chunk)["firsttoken.tokens"]) for chunk in chunks]
    assert [past for past, _ in said] == [0, 64, 128]
    assert sum(tokens for _, tokens in said) == facts(root)["gen_ai.usage.input_tokens"] == 150
    assert all(prefill.start_time_unix_nano <= chunk.start_time_unix_nano for chunk in chunks)
    assert all(chunk.end_time_unix_nano <= prefill.end_time_unix_nano for chunk in chunks)


async def test_a_log_line_names_the_trace(capfd: pytest.CaptureFixture[str]) -> None:
    with collecting() as collector:
        async with running(**traced(collector, telemetry__log_level="info", telemetry__log_format="json")) as server:
            await collect(server.generation.Generate(request(max_tokens=3), metadata=caller()))
    assert f'"trace": "{TRACE}"' in capfd.readouterr().err


async def test_a_dead_collector_harms_nothing_and_is_counted(capfd: pytest.CaptureFixture[str]) -> None:
    endpoint = "http://127.0.0.1:9"  # nobody listens there
    async with running(
        telemetry__otlp_endpoint=endpoint, telemetry__log_level="info", telemetry__log_format="json"
    ) as server:
        for _ in range(3):
            tokens, _, _ = await collect(server.generation.Generate(request(max_tokens=20), metadata=caller()))
            assert len(tokens) == 20
    err = capfd.readouterr().err
    assert err.count("traces do not reach the collector") <= 1
    assert "opentelemetry" not in err


def test_a_collector_that_hangs_fills_the_queue_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_queue, "MAX_WAITING", 5)
    counted: dict[str, int] = {}

    def count(outcome: str, spans: int) -> None:
        counted[outcome] = counted.get(outcome, 0) + spans

    with collecting() as collector:
        collector.open.clear()
        tracer = OtlpTracer(collector.endpoint, share=1.0, version="1", count=count)
        trace(tracer)
        assert collector.asked.wait(60)  # the thread is inside the first batch
        for _ in range(20):
            trace(tracer)
        assert counted["dropped"] == 15
        collector.open.set()
        tracer.close(60)
        tracer.close(60)  # idempotent
        assert counted == {"dropped": 15, "sent": 6}
        assert len(collector.spans) == 6


def ignore(outcome: str, spans: int) -> None:
    pass


def trace(tracer: OtlpTracer, parts: Sequence[SpanSketch] = ()) -> None:
    begun = tracer.begin((), 1.0)
    assert begun is not None
    begun.end(parts, {}, "ok")


def test_an_exporter_that_raises_does_not_end_the_thread() -> None:
    class Bad:
        exported = 0

        def export(self, spans: Sequence[object]) -> None:
            self.exported += 1
            raise ValueError("SECRET")

        def shutdown(self) -> None:
            pass

    counted: list[str] = []
    bad = Bad()
    spans = SpanQueue(bad, lambda outcome, _: counted.append(outcome))  # type: ignore[arg-type]
    for expected in (1, 2):
        spans.on_end(object())  # type: ignore[arg-type]
        while bad.exported < expected:
            pass
    spans.close(10)
    assert counted == ["failed", "failed"]


def test_nothing_is_imported_unless_configured_and_what_is_missing_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    for module in ("server.telemetry.otel", "server.telemetry.span_queue"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert make_tracer(TelemetryConfig(), ignore, "1") is None
    with pytest.raises(ValueError, match=r"pip install 'firsttoken\[otel\]'"):
        make_tracer(TelemetryConfig(otlp_endpoint="http://x:1"), ignore, "1")


@pytest.mark.parametrize("endpoint", ["localhost:4317", "grpc://x:1", "http://", "nonsense"])
def test_an_endpoint_that_is_none_is_refused_by_name(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"telemetry\.otlp_endpoint"):
        make_tracer(TelemetryConfig(otlp_endpoint=endpoint), ignore, "1")
