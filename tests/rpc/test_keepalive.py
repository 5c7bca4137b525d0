"""Clients that ping through a silent prefill are not cut off."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from server.config_ports import GrpcConfig
from server.rpc.port import address_of, transport_options
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import Running, collect, request, running, until

STRICT, LAX = 300.0, 0.2
"""Least seconds between two pings. gRPC's client sends one each second or so at the most, and is cut off at the third that comes too soon."""


def pinging_channel(server: Running) -> Any:
    options = [
        ("grpc.keepalive_time_ms", 300),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.aio.insecure_channel(server.target, options=options)


async def silent_call(min_ping_interval: float, silence: asyncio.Event) -> grpc.StatusCode:
    """The status of a call whose client pings through a prefill that lasts until ``silence`` is over, on a server with this setting."""
    engine = FakeEngine(silent_steps=10**9)
    async with (
        running(engine, grpc__min_ping_interval=min_ping_interval, lifecycle__warm_up=False) as server,
        pinging_channel(server) as channel,
    ):
        call = GenerationStub(channel).Generate(request(max_tokens=1))
        await until(lambda: call.done() or silence.is_set())
        engine.silent_steps = 0
        with contextlib.suppress(grpc.aio.AioRpcError):
            await collect(call)
        return await call.code()


async def idle_connection(min_ping_interval: float, silence: asyncio.Event) -> bool:
    """Whether a connection without calls outlives its client's pings until ``silence`` is over."""
    async with running(grpc__min_ping_interval=min_ping_interval) as server, pinging_channel(server) as channel:
        await collect(GenerationStub(channel).Generate(request(max_tokens=1)))
        await until(lambda: silence.is_set() or channel.get_state() is not grpc.ChannelConnectivity.READY)
        return channel.get_state() is grpc.ChannelConnectivity.READY


async def test_pings_during_a_long_silence_and_while_idle_case_H1_H1b() -> None:
    """Scaled down: the pings that break a server which allows few of them, whenever they have, leave one alone that allows them."""
    silence, never = asyncio.Event(), asyncio.Event()
    allowed = asyncio.gather(silent_call(LAX, silence), idle_connection(LAX, silence))
    broken = await asyncio.gather(silent_call(STRICT, never), idle_connection(STRICT, never))
    assert [*broken] == [grpc.StatusCode.UNAVAILABLE, False]
    silence.set()
    assert [*await allowed] == [grpc.StatusCode.OK, True]


@pytest.mark.slow
async def test_ten_second_pings_for_a_minute_of_silence_case_H1_H1b() -> None:
    """Unscaled: what clients really do, against the server's defaults, with a call that is silent for 60 s and without any."""
    pings = [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    engine = FakeEngine(silent_steps=6_000, step_seconds=0.01)
    async with (
        running(engine, lifecycle__warm_up=False) as server,
        grpc.aio.insecure_channel(server.target, options=pings) as calling,
        grpc.aio.insecure_channel(server.target, options=pings) as idle,
    ):
        await GenerationStub(idle).Tokenize(pb.TokenizeRequest(prompt=pb.Prompt(text="connect")))
        tokens, _, _ = await collect(GenerationStub(calling).Generate(request(max_tokens=1)))
        assert len(tokens) == 1
        assert idle.get_state() is grpc.ChannelConnectivity.READY
        assert calling.get_state() is grpc.ChannelConnectivity.READY


@pytest.mark.parametrize(("host", "address"), [("::1", "[::1]:7"), ("0.0.0.0", "0.0.0.0:7"), ("unix:/s", "unix:/s")])  # noqa: S104
def test_addresses(host: str, address: str) -> None:
    assert address_of(GrpcConfig(host=host), 7) == address


def test_the_transport_follows_the_configuration_case_H2() -> None:
    options = dict(transport_options(GrpcConfig()))
    assert options["grpc.http2.min_ping_interval_without_data_ms"] <= 10_000
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.so_reuseport"] == 0
    assert options["grpc.max_receive_message_length"] == GrpcConfig().max_message_bytes
    assert "grpc.max_connection_age_ms" not in options
    aged = dict(transport_options(GrpcConfig(max_connection_age=60, max_connection_age_grace=1e9)))
    assert aged["grpc.max_connection_age_ms"] == 60_000
    assert aged["grpc.max_connection_age_grace_ms"] == 2**31 - 1
