"""A stream of requests over its life: errors in it, errors that end it, what is damaged, and a server that shuts down under it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from protos.inference import grpc_service_pb2 as wire
from protos.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from server.app import App
from tests.e2e.whole_server import ENGINES, say, serving
from tests.fakes.running import collect, until

STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


def ask(text: str, max_tokens: int = 5, *, name: str = "", stream: bool = True) -> wire.ModelInferRequest:
    request = wire.ModelInferRequest(model_name="ensemble", id=name)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(text.encode())
    request.inputs.add(name="max_tokens", datatype="INT32", shape=[1]).contents.int_contents.append(max_tokens)
    request.inputs.add(name="stream", datatype="BOOL", shape=[1]).contents.bool_contents.append(stream)
    return request


def channel(app: App) -> Any:
    return grpc.aio.insecure_channel(f"127.0.0.1:{app.grpc_port}")


async def said(call: Any) -> tuple[dict[str, str], list[str]]:
    """By id all text, and the errors."""
    texts: dict[str, str] = {}
    errors: list[str] = []
    async for message in call:
        response = message.infer_response
        if message.error_message:
            errors.append(message.error_message)
        for place, output in enumerate(response.outputs):
            if output.name == "text_output":
                texts[response.id] = texts.get(response.id, "") + response.raw_output_contents[place][4:].decode()
    return texts, errors


@pytest.mark.parametrize("engine", ENGINES)
async def test_one_request_fails_and_its_neighbours_go_on_case_M9(engine: str) -> None:
    async with serving(engine) as (app, stub):
        call = GRPCInferenceServiceStub(channel(app)).ModelStreamInfer(
            iter([ask("One", name="1"), ask("Two", -1, name="2"), ask("Three", name="3")])
        )
        texts, errors = await said(call)
        assert errors == ["INVALID_ARGUMENT: max_tokens: must be from 0 to 8191, it is -1"]
        expected = [(await collect(stub.Generate(say(text, max_tokens=5))))[1] for text in ("One", "Three")]
        assert texts == {"1": expected[0], "3": expected[1]}


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_client_that_asks_for_statuses_gets_them_case_H6(engine: str) -> None:
    async with serving(engine) as (app, _):
        call = GRPCInferenceServiceStub(channel(app)).ModelStreamInfer(
            iter([ask("Two", -1)]), metadata=(("triton_grpc_error", "true"),)
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await said(call)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details().startswith("max_tokens: ")


@pytest.mark.parametrize("engine", ENGINES)
async def test_damaged_bytes_end_the_stream_with_a_status_case_M6(engine: str) -> None:
    async with serving(engine, "laptop", lifecycle__warm_up=False) as (app, _):
        good = ask("Go on", 5000, name="1").SerializeToString()
        call = channel(app).stream_stream(STREAM)(iter([good, b"\xff\xff\xff"]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no valid inference.ModelInferRequest" in caught.value.details()
        await until(lambda: not app._open_streams())


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_same_id_twice_is_refused_in_the_stream_case_H12(engine: str) -> None:
    async with serving(engine, "laptop", lifecycle__warm_up=False) as (app, _):
        requests = [ask("One", 20, name="same"), ask("Two", 20, name="same")]
        texts, errors = await said(GRPCInferenceServiceStub(channel(app)).ModelStreamInfer(iter(requests)))
        assert len(errors) == 1
        assert errors[0].startswith("ALREADY_EXISTS: a request 'same' is alive")
        assert list(texts) == ["same"]


@pytest.mark.parametrize("engine", ENGINES)
async def test_an_open_stream_without_requests_does_not_hold_the_shutdown_case_I1(engine: str) -> None:
    async def silence() -> AsyncIterator[wire.ModelInferRequest]:
        yield ask("One")
        await asyncio.sleep(3600)

    async with serving(engine) as (app, _):
        call = GRPCInferenceServiceStub(channel(app)).ModelStreamInfer(silence())
        await call.initial_metadata()
        await until(lambda: not app._open_streams())
        app.request_stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(said(call), 60)
        assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
