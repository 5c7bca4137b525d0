"""Start, drain, failure: what those who operate the server rely on."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from typing import Any

import aiohttp
import grpc
import psutil
import pytest

from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from server.config import Config
from server.loading import LoadedModel
from server.phases import Phases
from server.readiness import Readiness, State
from server.rpc import port
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import Running, collect, configure, loaded, make_app, request, running, until
from tests.rpc.raw_http2 import GENERATE, call, greeting


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    return caught.value.code(), caught.value.details()


async def start_stream(server: Running, tokens: int = 100) -> Any:
    call = server.generation.Generate(request(max_tokens=tokens))
    await call.initial_metadata()
    return call


# ---------------------------------------------------------------------- start


async def test_not_ready_until_the_warm_up_went_through_case_B4_B6() -> None:
    """While it loads and warms up, every surface says so, and nobody but the warm-up gets in."""
    engine = FakeEngine(silent_steps=10_000)  # the warm-up hangs in its prefill
    gate = asyncio.Event()
    loop = asyncio.get_running_loop()

    def load(config: Config, phases: Phases) -> LoadedModel:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        return loaded(engine)

    app = make_app(configure(), load)
    over = asyncio.create_task(app.run())
    await until(lambda: bool(app.http_port))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{app.grpc_port}") as channel, aiohttp.ClientSession() as session:
        for loading in (True, False):
            code, details = await code_of(GenerationStub(channel).Generate(request()))
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "starting" in details
            async with session.get(f"http://127.0.0.1:{app.http_port}/readyz") as response:
                assert (response.status, await response.text()) == (503, "starting\n")
            if loading:
                gate.set()
                await until(lambda: bool(engine.submitted))
        forged = GenerationStub(channel).Generate(request(), metadata=(("firsttoken-warm-up", "guess"),))
        assert (await code_of(forged))[0] is grpc.StatusCode.UNAVAILABLE
        assert len(engine.submitted) == 1
        engine.silent_steps = 0
        await until(lambda: app.readiness.ready)
        await collect(GenerationStub(channel).Generate(request(max_tokens=1)))
    app.request_stop()
    assert await over == 0


async def test_a_failed_warm_up_ends_the_process_case_B5() -> None:
    app = make_app(configure(lifecycle__warm_up_timeout=0.2), lambda _, __: loaded(FakeEngine(silent_steps=10_000)))
    assert await app.run() == 1
    assert app.readiness.state is State.FAILED


async def test_an_engine_that_cannot_be_loaded_ends_the_process() -> None:
    def load(config: Config, phases: Phases) -> LoadedModel:
        raise OSError("no such engine")

    assert await make_app(configure(), load).run() == 1


async def test_a_taken_port_fails_loudly_without_waiting_for_the_load(capfd: pytest.CaptureFixture[str]) -> None:
    release = threading.Event()

    def load(config: Config, phases: Phases) -> LoadedModel:
        release.wait()
        return loaded(FakeEngine())

    async with running() as server:
        for name, port in (("grpc", server.app.grpc_port), ("http", server.app.http_port)):
            app = make_app(configure(**{f"{name}__port": port}), load)
            assert await app.run() == 1
            assert f"{name}.port: cannot listen on 127.0.0.1:{port}" in capfd.readouterr().err
    release.set()


async def test_a_stop_while_loading_does_not_wait_for_the_load() -> None:
    release = threading.Event()

    def load(config: Config, phases: Phases) -> LoadedModel:
        release.wait(120)
        return loaded(FakeEngine())

    app = make_app(configure(), load)
    over = asyncio.create_task(app.run())
    await until(lambda: bool(app.grpc_port))
    app.request_stop()
    assert await over == 0
    release.set()


async def test_phases_of_the_start_are_told_case_B12() -> None:
    async with running() as server:
        phases = server.app._phases.seconds
        assert sorted(phases) == sorted(["load", "import", "ports", "warm_up", "ready"])
        assert phases["ready"] >= phases["load"] + phases["warm_up"]


# ---------------------------------------------------------------------- drain


async def test_a_drain_lets_streams_finish_and_refuses_new_ones_case_I1_I2_I4_I5() -> None:
    engine = FakeEngine(step_seconds=0.005, hold_at=50)
    async with running(engine, lifecycle__drain_delay=1.0) as server:
        streams = [asyncio.ensure_future(collect(await start_stream(server))) for _ in range(32)]
        server.app.request_stop()
        await until(lambda: server.app.readiness.state is State.CLOSING)
        await collect(server.generation.Generate(request(max_tokens=1)))  # load balancers have not looked yet
        await until(lambda: server.app.readiness.state is State.DRAINING)
        code, details = await code_of(server.generation.Generate(request()))
        assert (code, details) == (
            grpc.StatusCode.UNAVAILABLE,
            "the server is shutting down and takes no new requests",
        )
        assert (await server.http("/readyz"))[0] == 503
        engine.hold_at = None
        for tokens, _, final in await asyncio.gather(*streams):
            assert len(tokens) == final.usage.completion_tokens == 100
        assert await server.over == 0
        assert server.engine.cancels == []


async def test_the_port_stays_open_while_calls_still_come_case_I2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hears why it is refused. gRPC, once stopped, ends those that it has not handed over yet as CANCELLED, which nobody tries again."""
    monkeypatch.setattr(port, "ON_THE_WAY", 0.5)
    async with running() as server:
        assert server.app._grpc is not None
        server.app.readiness.become(State.DRAINING)
        stopped = asyncio.ensure_future(server.app._grpc.stop(60))
        enough = asyncio.get_running_loop().time() + 1.2
        while asyncio.get_running_loop().time() < enough:
            code, details = await code_of(server.generation.Generate(request()))
            assert (code, "takes no new requests" in details) == (grpc.StatusCode.UNAVAILABLE, True)
            assert not stopped.done()
        await stopped
        server.app.request_stop()


async def test_calls_that_never_cease_do_not_keep_the_port_open_case_I2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "LONGEST_WAY", 0.3)
    async with running() as server:
        assert server.app._grpc is not None
        server.app.readiness.become(State.DRAINING)
        stopped = asyncio.ensure_future(server.app._grpc.stop(60))
        async with asyncio.timeout(60):
            while not stopped.done():
                await code_of(server.generation.Generate(request()))
        server.app.request_stop()


async def test_what_outlives_the_grace_ends_with_a_status_case_I1_I7() -> None:
    async with running(FakeEngine(hold_at=50), lifecycle__drain_grace=0.2) as server:
        stream = await start_stream(server, 400)
        server.app.request_stop()
        code, details = await code_of(stream)
        assert (code, details) == (grpc.StatusCode.UNAVAILABLE, "the server is shutting down")
        assert await server.over == 0
        assert not server.engine.live


@pytest.mark.parametrize("window", [0, 20])
async def test_a_stalled_reader_cannot_hold_a_drain(window: int) -> None:
    """Neither one whose output nobody takes, nor one whose last word alone is left: a drain without others is over before any grace."""
    engine = FakeEngine(step_seconds=0.001, max_context=100_000)
    flags: dict[str, Any] = {"limits__reader_stall": 0.5, "lifecycle__drain_grace": 3600, "lifecycle__warm_up": False}
    async with running(engine, **flags) as server:
        writers = []
        for tokens in (1, 20, 90_000):
            _, writer = await asyncio.open_connection("127.0.0.1", server.app.grpc_port)
            asked = request(max_tokens=tokens).SerializeToString()
            writer.write(greeting(window) + call(GENERATE, asked))
            writers.append(writer)
        await until(lambda: len(engine.submitted) == len(writers))
        tokens_of = asyncio.ensure_future(collect(server.generation.Generate(request(max_tokens=300))))
        await until(lambda: len(engine.submitted) == len(writers) + 1)
        server.app.request_stop()
        assert len((await tokens_of)[0]) == 300
        assert await asyncio.wait_for(server.over, 120) == 0
        for writer in writers:
            writer.close()


async def test_after_a_drain_nothing_of_the_server_is_left() -> None:
    """No handler, task, thread, or file of its own; twice in one process, so that what the first one leaves would show."""
    left = []
    for _ in range(2):
        tasks, threads, callbacks = asyncio.all_tasks(), set(threading.enumerate()), [*gc.callbacks]
        async with running(FakeEngine(step_seconds=0.002)) as server:
            await collect(server.generation.Generate(request(max_tokens=20)))
            cancelled = await start_stream(server)
            cancelled.cancel()
        await until(lambda: not {task for task in asyncio.all_tasks() - tasks if not task.done()})  # noqa: B023
        await until(lambda: not named(set(threading.enumerate()) - threads))  # noqa: B023
        assert gc.callbacks == callbacks
        left.append(psutil.Process().num_fds())
    await until(lambda: psutil.Process().num_fds() <= left[0])  # gRPC closes its own on threads of its own
    for number in (signal.SIGTERM, signal.SIGINT):
        assert not asyncio.get_running_loop().remove_signal_handler(number)


def named(threads: set[threading.Thread]) -> list[str]:
    """All but asyncio's own pool, which the loop keeps, and gRPC's poller, of which a process has one."""
    return [thread.name for thread in threads if not thread.name.startswith("asyncio_") and "_poll_" not in thread.name]


async def test_a_second_signal_is_fast_case_I3() -> None:
    async with running(FakeEngine(hold_at=50), lifecycle__drain_grace=3600, lifecycle__drain_delay=3600) as server:
        stream = await start_stream(server, 400)
        server.app.request_stop()
        await until(lambda: server.app.readiness.state is State.CLOSING)
        server.app.request_stop()
        assert (await code_of(stream))[0] is grpc.StatusCode.UNAVAILABLE
        assert await server.over == 1


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize("trouble", ["die", "hang"])
async def test_engine_trouble_ends_streams_and_process_case_B7_B8(trouble: str) -> None:
    async with running(FakeEngine(hold_at=50)) as server:
        stream = await start_stream(server, 400)
        getattr(server.engine, trouble)()
        code, details = await code_of(stream)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "engine" in details
        assert server.app.readiness.state is State.FAILED
        assert await server.over == 1


def test_readiness_only_moves_forward() -> None:
    readiness = Readiness()
    assert readiness.become(State.READY)
    assert readiness.become(State.DRAINING)
    assert not readiness.become(State.READY)
    assert not readiness.become(State.DRAINING)
    assert readiness.state is State.DRAINING
    assert readiness.become(State.FAILED)


def test_only_a_replacement_leads_back_to_ready() -> None:
    readiness = Readiness()
    assert readiness.become(State.READY)
    assert readiness.become(State.REPLACING)
    assert not readiness.ready
    assert readiness.become(State.READY)
    assert readiness.become(State.REPLACING)
    assert readiness.become(State.CLOSING)
    assert not readiness.become(State.READY)
    assert not readiness.become(State.REPLACING)
