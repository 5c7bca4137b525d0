"""Floods at the port: each has a bound, a status where the protocol has one, and nobody else notices."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp.test_utils import make_mocked_request
from google.rpc import error_details_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_status import rpc_status

from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from server.config_ports import HttpConfig
from server.errors import OverloadedError
from server.http import HttpPort
from server.readiness import Readiness
from server.rpc.connections import ConnectionCalls
from server.telemetry.metrics import Metrics
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import Running, collect, request, running, until


def own_channel(server: Running) -> Any:
    return grpc.aio.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])


async def code_of(call: Any) -> tuple[grpc.StatusCode, grpc.aio.AioRpcError]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    return caught.value.code(), caught.value


async def test_calls_of_one_connection_are_bounded_and_others_go_on() -> None:
    async with running(FakeEngine(step_seconds=0.01), grpc__max_connection_calls=3) as server:
        greedy = [server.generation.Generate(request(max_tokens=400)) for _ in range(2)]
        watch = HealthStub(server.channel).Watch(HealthCheckRequest())  # every kind of call counts
        await asyncio.gather(*(call.initial_metadata() for call in greedy), watch.read())
        code, error = await code_of(server.generation.Generate(request()))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        details = rpc_status.from_call(error).details
        assert details[0].Unpack(info)
        assert details[1].Unpack(retry)
        assert dict(info.metadata) == {"limit": "connection_calls"}
        async with own_channel(server) as other:
            await collect(GenerationStub(other).Generate(request(max_tokens=2)))
        greedy[0].cancel()
        await until(lambda: len(server.engine.live) == 1)
        await until(lambda: server.app._open_streams() == 1)
        await collect(server.generation.Generate(request(max_tokens=2)))
        greedy[1].cancel()
        watch.cancel()


def test_connections_are_forgotten_with_their_last_call() -> None:
    calls = ConnectionCalls(2)
    with calls.entered("ipv4:1.2.3.4:5"), calls.entered("ipv4:1.2.3.4:5"):
        with pytest.raises(OverloadedError), calls.entered("ipv4:1.2.3.4:5"):
            pass
        with calls.entered("ipv4:1.2.3.4:6"):
            assert len(calls) == 2
        for _ in range(3):
            calls.entered("unix:").__enter__()  # no names, no counts
    assert len(calls) == 0


async def test_metadata_beyond_its_bound_never_reaches_us() -> None:
    async with running(grpc__max_metadata_bytes=8192, lifecycle__warm_up=False) as server:
        fits = (("x-note", "a" * 6000),)
        await collect(server.generation.Generate(request(max_tokens=1), metadata=fits))
        for flood in ((("x-note", "a" * 9000),), tuple((f"x-{place}", "a") for place in range(1000))):
            code, _ = await code_of(server.generation.Generate(request(), metadata=flood))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(server.engine.submitted) == 1
        await collect(server.generation.Generate(request(max_tokens=1)))


async def test_http1_on_the_grpc_port_is_closed_and_harms_nobody() -> None:
    async with running(FakeEngine(step_seconds=0.005)) as server:
        stream = asyncio.ensure_future(collect(server.generation.Generate(request(max_tokens=100))))
        for greeting in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00" + b"\x00" * 512, b"\x00" * 4096):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.app.grpc_port)
            writer.write(greeting)
            async with asyncio.timeout(60):
                answer = await _rest(reader)
            assert not answer.startswith(b"HTTP/1.1 200")
            writer.close()
        assert len((await stream)[0]) == 100


@pytest.mark.parametrize(
    "flood",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nsecret: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(20_000)) + b"\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["long header", "many headers", "long path"],
)
async def test_a_malformed_request_at_the_http_port_is_one_line_without_its_bytes(
    flood: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.app.http_port)
        writer.write(flood)
        async with asyncio.timeout(60):
            answer = await _rest(reader)
            # What the server closes before it has read all is reset, and the answer may be lost with it.
            assert answer.startswith(b"HTTP/1.0 400") or not answer
        writer.close()
        assert (await server.http("/readyz"))[0] == 200
    said = capfd.readouterr().err
    assert said.count("an HTTP request was refused") == 1
    assert len(said.splitlines()) == 1
    assert "aaaa" not in said


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_idle_connections_are_closed_where_told_to_and_cost_no_stream() -> None:
    async with running(grpc__max_connection_idle=0.3) as server, own_channel(server) as channel:
        await collect(GenerationStub(channel).Generate(request(max_tokens=1)))
        state = grpc.ChannelConnectivity.READY
        async with asyncio.timeout(60):
            while state is grpc.ChannelConnectivity.READY:
                await channel.wait_for_state_change(state)
                state = channel.get_state()
        assert state is grpc.ChannelConnectivity.IDLE
        await collect(GenerationStub(channel).Generate(request(max_tokens=1)))  # and comes back by itself


async def test_many_silent_connections_hold_nobody_up() -> None:
    async with running(FakeEngine(step_seconds=0.002)) as server:
        silent = [socket.create_connection(("127.0.0.1", server.app.grpc_port)) for _ in range(200)]
        tokens, _, _ = await collect(server.generation.Generate(request(max_tokens=50)))
        assert len(tokens) == 50
        for connection in silent:
            connection.close()


async def test_metrics_are_for_this_machine(tmp_path: Path) -> None:
    async with running() as server:
        assert (await server.http("/metrics"))[0] == 200
    config = HttpConfig(host="0.0.0.0")  # noqa: S104 - what is tested
    for remote, open_to_all, refused in (
        ("10.1.2.3", False, True),
        ("::ffff:10.1.2.3", False, True),
        ("::ffff:127.0.0.1", False, False),
        ("::1", False, False),
        (None, False, True),
        ("10.1.2.3", True, False),
    ):
        port = HttpPort(config.model_copy(update={"remote_metrics": open_to_all}), Readiness(), Metrics())
        asked = (
            make_mocked_request("GET", "/metrics").clone(remote=remote) if remote else make_mocked_request("GET", "/")
        )
        if remote is None:
            asked = asked.clone(remote="")
        if refused:
            with pytest.raises(aiohttp.web.HTTPForbidden):
                await port._show_metrics(asked)
        else:
            assert (await port._show_metrics(asked)).status == 200
        assert (await port._show_health(asked)).status == 200
