"""Health over one truth."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from server.rpc.port import SERVICES
from tests.fakes.running import Running, running

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def stub(server: Running) -> health_pb2_grpc.HealthStub:
    return health_pb2_grpc.HealthStub(server.channel)


async def test_check_knows_the_server_and_each_service_case_B6() -> None:
    async with running() as server:
        for name in ("", *SERVICES):
            assert (await stub(server).Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(server).Check(health_pb2.HealthCheckRequest(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert (await server.http("/readyz")) == (200, "ready\n")
        assert (await server.http("/healthz"))[0] == 200


async def test_watchers_survive_each_other_and_see_the_drain_before_it_refuses_case_I7() -> None:
    async with running(lifecycle__drain_delay=2.0) as server:
        leaver, stayer = (stub(server).Watch(health_pb2.HealthCheckRequest()) for _ in range(2))
        assert (await leaver.read()).status == SERVING
        assert (await stayer.read()).status == SERVING
        leaver.cancel()
        await asyncio.sleep(0.02)
        server.app.request_stop()
        assert (await stayer.read()).status == NOT_SERVING
        assert (await server.http("/readyz")) == (503, "closing\n")
        assert (await server.http("/healthz"))[0] == 200
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # it does not hold the shutdown up
            await stayer.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await server.over == 0


async def test_watching_an_unknown_service_says_so_and_stays_open() -> None:
    async with running() as server:
        call = stub(server).Watch(health_pb2.HealthCheckRequest(service="other"))
        assert (await call.read()).status == UNKNOWN
        pending = asyncio.ensure_future(call.read())
        await asyncio.sleep(0.05)
        assert not pending.done()
        pending.cancel()


async def test_probes_do_not_wait_behind_traffic_case_B9_B10() -> None:
    async with running(engine__stuck_after=7200.0) as server:  # nobody gives the engine up meanwhile
        server.engine.hang()
        checks = [stub(server).Check(health_pb2.HealthCheckRequest()) for _ in range(200)]
        answers = await asyncio.gather(*checks)
        assert len(answers) == 200
        assert len(server.engine.submitted) == 2  # the two of the warm-up: probes are no requests
