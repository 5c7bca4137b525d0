"""However a call ends early, the seat is given up at once, and the books say why."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from protos.firsttoken.v1 import generation_pb2 as pb
from server.engine import FinishReason
from server.text.tokenizer_pool import TokenizerPool
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import Running, collect, request, running, serving_of, until


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    return caught.value


async def outcome_counted(server: Running, outcome: str) -> None:
    await until(lambda: not server.app._open_streams())
    samples = await server.metrics()
    assert samples[f"firsttoken_requests_total{{class=interactive,outcome={outcome}}}"] == 1
    assert samples["firsttoken_running_sequences"] == 0
    assert len(serving_of(server.app).registry) == 0
    serving_of(server.app).registry.check_integrity()


@pytest.mark.parametrize("silent", [0, 1000])
async def test_a_client_that_cancels_case_D1_D11(silent: int) -> None:
    """Amid its output, and while its prompt is being computed."""
    async with running(FakeEngine(step_seconds=0.005), lifecycle__warm_up=False) as server:
        server.engine.silent_steps = silent
        call = server.generation.Generate(request(max_tokens=400))
        await call.initial_metadata()
        if not silent:
            await call.read()
        call.cancel()
        await until(lambda: not server.engine.live)
        assert server.engine.cancels == [(1, FinishReason.CANCELLED)]
        await outcome_counted(server, "cancelled")


async def test_a_client_whose_connection_is_gone_case_D12() -> None:
    async with running(FakeEngine(step_seconds=0.005), lifecycle__warm_up=False) as server:
        channel = grpc.aio.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])
        calls = [
            channel.unary_stream("/firsttoken.v1.Generation/Generate")(request(max_tokens=400).SerializeToString())
            for _ in range(20)
        ]
        await asyncio.gather(*(call.read() for call in calls))
        await channel.close()
        await until(lambda: not server.engine.live)
        assert {reason for _, reason in server.engine.cancels} == {FinishReason.CANCELLED}
        samples = await server.metrics()
        assert samples["firsttoken_requests_total{class=interactive,outcome=cancelled}"] == 20


@pytest.mark.parametrize("seconds", [0.5, 1.234])
async def test_a_deadline_ends_the_work_too_case_D2_H7(seconds: float) -> None:
    """Whoever is first, the client's clock or ours: the wire rounds the longer one up, so that the client gives up before we would."""
    async with running(FakeEngine(hold_at=5), lifecycle__warm_up=False) as server:
        error = await failure(server.generation.Generate(request(max_tokens=400), timeout=seconds))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: not server.engine.live)
        assert server.engine.cancels == [(1, FinishReason.DEADLINE)]
        (submitted,) = server.engine.submitted
        assert submitted.deadline is not None
        assert 0 < submitted.deadline - submitted.arrival <= 1.02 * seconds
        await outcome_counted(server, "deadline")


async def test_who_leaves_long_before_the_deadline_is_no_deadline() -> None:
    async with running(FakeEngine(hold_at=5), lifecycle__warm_up=False) as server:
        call = server.generation.Generate(request(max_tokens=400), timeout=600)
        await call.read()
        call.cancel()
        await until(lambda: not server.engine.live)
        assert server.engine.cancels == [(1, FinishReason.CANCELLED)]
        await outcome_counted(server, "cancelled")


async def test_a_ttft_deadline_is_told_to_the_engine_and_named_case_E10() -> None:
    async with running(FakeEngine(silent_steps=10_000), lifecycle__warm_up=False) as server:
        call = server.generation.Generate(request(ttft_deadline=Duration(nanos=250_000_000)))
        await until(lambda: bool(server.engine.live))
        (submitted,) = server.engine.submitted
        assert submitted.ttft_deadline == submitted.arrival + 0.25
        server.engine.cancel(submitted.id, FinishReason.DEADLINE)  # as an engine does when the time has come
        error = await failure(call)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert error.details() == "ttft_deadline: no token within 0.25 s of arrival"
        await outcome_counted(server, "deadline")


async def test_overload_tells_when_to_come_back_case_E8() -> None:
    async with running(FakeEngine(max_waiting=0), lifecycle__warm_up=False) as server:
        call = server.generation.Generate(request())
        assert (await failure(call)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = await rpc_status.aio.from_call(call)
        retry = error_details_pb2.RetryInfo()
        assert status.details[1].Unpack(retry)
        assert retry.retry_delay.ToTimedelta().total_seconds() == 2.5
        server.engine.max_waiting = 10
        await collect(server.generation.Generate(request(max_tokens=1)))


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was tokenized."""
    encode, texts = TokenizerPool.encode, list[str]()

    async def encode_seen(pool: TokenizerPool, text: str) -> list[int]:
        texts.append(text)
        return await encode(pool, text)

    monkeypatch.setattr(TokenizerPool, "encode", encode_seen)
    return texts


async def test_a_full_room_refuses_before_anybody_tokenizes(texts: list[str]) -> None:
    async with running(FakeEngine(max_waiting=0), lifecycle__warm_up=False) as server:
        error = await failure(server.generation.Generate(request()))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not texts
        server.engine.max_waiting = 10
        await collect(server.generation.Generate(request(max_tokens=1)))
        assert len(texts) == 1


async def test_who_would_be_late_whatever_the_prompt_is_refused_before_anybody_tokenizes(texts: list[str]) -> None:
    async with running(FakeEngine(least_wait=5.0), lifecycle__warm_up=False) as server:
        late = request(max_tokens=1, ttft_deadline=Duration(seconds=4))
        # What depends on the prompt's length, which is not known yet, does not matter.
        late.truncate_prompt = 1
        error = await failure(server.generation.Generate(late))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not texts
        await collect(server.generation.Generate(request(max_tokens=1, ttft_deadline=Duration(seconds=6))))
        assert len(texts) == 1


async def test_prompts_that_wait_for_the_tokenizer_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, encode = asyncio.Event(), TokenizerPool.encode

    async def encode_later(pool: TokenizerPool, text: str) -> list[int]:
        await busy.wait()
        return await encode(pool, text)

    async with running(admission__max_tokenizing_bytes=4096) as server:
        monkeypatch.setattr(TokenizerPool, "encode", encode_later)
        prompt = pb.TokenizeRequest(prompt=pb.Prompt(text="x" * 3000))
        calls = [server.generation.Tokenize(prompt) for _ in range(5)]
        await until(lambda: sum(call.done() for call in calls) == 4)
        refused = [call for call in calls if call.done()]
        (let_in,) = (call for call in calls if not call.done())
        assert {await call.code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert "admission.max_tokenizing_bytes" in await refused[0].details()
        busy.set()
        assert len((await let_in).ids) == 3000
        await server.generation.Tokenize(pb.TokenizeRequest(prompt=pb.Prompt(text="x" * 5000)))  # alone, it is let in


async def test_random_departures_leave_nothing_behind_case_D8() -> None:
    """Cancels and deadlines at every moment of a call's life, many at once."""
    async with running(FakeEngine(step_seconds=0.002, silent_steps=2), lifecycle__warm_up=False) as server:

        async def leave_after(steps: int) -> None:
            call = server.generation.Generate(request(max_tokens=30), timeout=0.001 * steps if steps % 3 == 0 else None)
            try:
                if steps % 3 == 1:
                    await asyncio.sleep(0.001 * steps)
                    call.cancel()
                await collect(call)
            except (grpc.aio.AioRpcError, asyncio.CancelledError):
                pass

        await asyncio.gather(*(leave_after(steps % 40) for steps in range(300)))
        await until(lambda: not server.engine.live and not server.app._open_streams())
        serving_of(server.app).registry.check_integrity()
        assert len(serving_of(server.app).registry) == 0
        samples = await server.metrics()
        counts = {name: value for name, value in samples.items() if name.startswith("firsttoken_requests_total")}
        stayed = sum(steps % 40 % 3 == 2 for steps in range(300))
        assert stayed <= counts["firsttoken_requests_total{class=interactive,outcome=ok}"] < 300
        assert counts["firsttoken_requests_total{class=interactive,outcome=error}"] == 0
        assert len(server.engine.submitted) <= sum(counts.values()) <= 300


async def test_a_stop_string_frees_the_seat_at_once() -> None:
    async with running(lifecycle__warm_up=False) as server:
        message = request(stop=pb.Stop(strings=["quick"]), max_tokens=400)
        _, text, final = await collect(server.generation.Generate(message))
        assert (text, final.usage.completion_tokens) == ("the ", 9)
        assert server.engine.stops == [(1, 0, 9)]
        assert final.usage.discarded_tokens < 100
        assert not server.engine.live
