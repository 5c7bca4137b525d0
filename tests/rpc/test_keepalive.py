"""Clients that ping through a silent prefill are not cut off."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from server.config import GrpcConfig
from server.rpc.port import address_of, transport_options
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import collect, request, running

PING_MS = 300


async def test_pings_during_a_long_silence_and_while_idle_case_H1_H1b() -> None:
    """Scaled down: pings each 0.3 s against a least interval of 0.2 s, as 10 s stand to the default's 5 s."""
    engine = FakeEngine(silent_steps=1500, step_seconds=0.001)
    async with running(engine, grpc__min_ping_interval=0.2, lifecycle__warm_up=False) as server:
        options = [
            ("grpc.keepalive_time_ms", PING_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        async with grpc.aio.insecure_channel(server.target, options=options) as channel:
            stub = GenerationStub(channel)
            await collect(stub.Generate(request(max_tokens=1)))
            await asyncio.sleep(1.5)
            engine.silent_steps = 0
            await collect(stub.Generate(request(max_tokens=1)))
            assert channel.get_state() is grpc.ChannelConnectivity.READY


@pytest.mark.parametrize(("host", "address"), [("::1", "[::1]:7"), ("0.0.0.0", "0.0.0.0:7"), ("unix:/s", "unix:/s")])  # noqa: S104
def test_addresses(host: str, address: str) -> None:
    assert address_of(GrpcConfig(host=host), 7) == address


def test_the_transport_follows_the_configuration_case_H2() -> None:
    options = dict(transport_options(GrpcConfig()))
    assert options["grpc.http2.min_recv_ping_interval_without_data_ms"] <= 10_000
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.so_reuseport"] == 0
    assert options["grpc.max_receive_message_length"] == GrpcConfig().max_message_bytes
    assert "grpc.max_connection_age_ms" not in options
    aged = dict(transport_options(GrpcConfig(max_connection_age=60, max_connection_age_grace=1e9)))
    assert aged["grpc.max_connection_age_ms"] == 60_000
    assert aged["grpc.max_connection_age_grace_ms"] == 2**31 - 1
