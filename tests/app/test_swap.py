"""Another engine in the place of the one that serves: nobody notices, and what goes wrong changes nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import grpc
import pytest

from engines.contract import EngineLoadError, EngineMemoryError
from firsttoken.cli import main
from firsttoken.client import AsyncClient, ConflictError
from protos.firsttoken.v1 import operations_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from protos.inference import grpc_service_pb2 as wire
from protos.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from server.concurrency import start_daemon
from server.config import Config
from server.loading import LoadedModel, load_model
from server.phases import Phases
from server.readiness import State
from server.rpc.prompt_reader import PromptReader
from server.swap import Load
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import Running, collect, loaded, request, running, serving_of, started, until

OLD, NEW = b"the old engine says this again and again. ", b"and this is what the new one says, for ever. "


def gives(engine: FakeEngine, seen: list[str] | None = None) -> Load:
    def load(config: Config) -> Future[LoadedModel]:
        if seen is not None:
            seen.append(config.engine.directory)
        return start_daemon(lambda: loaded(engine), "loader")

    return load


def swap(server: Running, directory: str = "new") -> Any:
    return server.operations.LoadEngine(pb.LoadEngineRequest(directory=directory), timeout=120)


async def refused(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return str(caught.value.details())


def said(output: bytes, tokens: int) -> str:
    return (output * tokens)[:tokens].decode()


async def test_a_swap_under_32_streams_drops_and_mixes_nothing() -> None:
    old, new, seen = FakeEngine(OLD, step_seconds=0.005, hold_at=100), FakeEngine(NEW, step_seconds=0.001), list[str]()
    async with running(old, another=gives(new, seen)) as server:
        streams = [
            asyncio.ensure_future(collect(server.generation.Generate(request(max_tokens=200)))) for _ in range(32)
        ]
        await until(lambda: len(old.live) == 32)
        answer = await swap(server, "engines/new")
        assert (seen, answer.model) == (["engines/new"], "fake")
        _, text, _ = await collect(server.generation.Generate(request(max_tokens=20)))
        assert text == said(NEW, 20)
        assert len(old.live) == 32  # they run on
        assert server.app._open_streams() == 32
        old.hold_at = None
        for tokens, text, final in await asyncio.gather(*streams):
            assert (len(tokens), text) == (200, said(OLD, 200))
            assert final.usage.completion_tokens == 200
        await until(old._closing.is_set)
        await until(lambda: len(list(server.app._servings)) == 1)
        assert server.app.readiness.ready
        assert (await server.metrics())["firsttoken_engine_alive"] == 1
    assert old.cancels == []


async def test_a_load_that_fails_changes_nothing() -> None:
    def fails(config: Config) -> Future[LoadedModel]:
        def load() -> LoadedModel:
            raise EngineLoadError("built for another runtime")

        return start_daemon(load, "loader")

    async with running(FakeEngine(OLD), another=fails) as server:
        assert "built for another runtime; the engine before stays" in await refused(swap(server))
        _, text, _ = await collect(server.generation.Generate(request(max_tokens=20)))
        assert text == said(OLD, 20)
        assert "directory" in str((await code(server.operations.LoadEngine(pb.LoadEngineRequest())))[1])


async def code(call: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details()


async def test_an_engine_that_cannot_generate_is_never_installed() -> None:
    mute, dead = FakeEngine(silent_steps=10**6), FakeEngine()
    dead.submit = lambda _: dead.die()  # type: ignore[method-assign, assignment]
    for bad in (mute, dead):
        async with running(FakeEngine(OLD), another=gives(bad), lifecycle__warm_up_timeout=3) as server:
            await refused(swap(server))
            assert bad._closing.is_set()
            assert server.app.readiness.ready
            _, text, _ = await collect(server.generation.Generate(request(max_tokens=20)))
            assert text == said(OLD, 20)


async def test_one_swap_at_a_time_and_it_outlives_its_caller() -> None:
    begun, release = threading.Event(), threading.Event()
    new = FakeEngine(NEW)

    def slow(config: Config) -> Future[LoadedModel]:
        def load() -> LoadedModel:
            begun.set()
            release.wait()
            return loaded(new)

        return start_daemon(load, "loader")

    async with running(FakeEngine(OLD), another=slow) as server:
        first = swap(server)
        await until(begun.is_set)
        assert "just being loaded" in await refused(swap(server))
        first.cancel()
        release.set()
        await until(lambda: serving_of(server.app).engine is new)


async def test_a_request_that_was_being_read_begins_again_with_the_new_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    new, reading, go_on = FakeEngine(NEW), asyncio.Event(), asyncio.Event()
    read = PromptReader.read

    async def slow_read(self: PromptReader, prompt: Any) -> Any:
        if prompt.text == "slow" and not reading.is_set():
            reading.set()
            await go_on.wait()
        return await read(self, prompt)

    monkeypatch.setattr(PromptReader, "read", slow_read)
    old = FakeEngine(OLD)
    async with running(old, another=gives(new)) as server:
        submitted = len(old.submitted)
        call = asyncio.ensure_future(collect(server.generation.Generate(request("slow", max_tokens=20))))
        await reading.wait()
        await swap(server)
        go_on.set()
        assert (await call)[1] == said(NEW, 20)
        assert len(old.submitted) == submitted
        await until(old._closing.is_set)


async def test_ids_live_once_and_abort_reaches_the_engine_that_runs_them() -> None:
    old, new = FakeEngine(OLD, hold_at=50), FakeEngine(NEW)
    async with running(old, another=gives(new)) as server:
        kept = server.generation.Generate(request(request_id="mine", max_tokens=400))
        await kept.initial_metadata()
        await swap(server)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(server.generation.Generate(request(request_id="mine")))
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert (await server.operations.Abort(pb.AbortRequest(request_id="mine"))).aborted
        with pytest.raises(grpc.aio.AioRpcError):
            await collect(kept)
        await until(lambda: not old.live)
        await until(old._closing.is_set)


async def test_an_old_engine_that_dies_takes_only_its_own_streams() -> None:
    old, new = FakeEngine(OLD, hold_at=50), FakeEngine(NEW, step_seconds=0.005)
    async with running(old, another=gives(new)) as server:
        kept = server.generation.Generate(request(max_tokens=400))
        await kept.initial_metadata()
        await swap(server)
        fresh = asyncio.ensure_future(collect(server.generation.Generate(request(max_tokens=100))))
        old.die()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(kept)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await fresh)[1] == said(NEW, 100)
        assert server.app.readiness.ready


async def test_a_drain_waits_for_both_engines() -> None:
    old, new = FakeEngine(OLD, step_seconds=0.005), FakeEngine(NEW, step_seconds=0.005)
    async with running(old, another=gives(new)) as server:
        first = asyncio.ensure_future(collect(server.generation.Generate(request(max_tokens=150))))
        await until(lambda: bool(old.live))
        await swap(server)
        second = asyncio.ensure_future(collect(server.generation.Generate(request(max_tokens=150))))
        await until(lambda: bool(new.live))
        server.app.request_stop()
        assert (await first)[1] == said(OLD, 150)
        assert (await second)[1] == said(NEW, 150)
        assert await server.over == 0


async def test_real_engines_swap_and_nothing_of_one_that_served_between_is_kept() -> None:
    def another(config: Config) -> Future[LoadedModel]:
        return start_daemon(lambda: load_model(config, Phases()), "loader")

    async with started(load_model, another=another, engine__directory="simulated:instant") as (app, channel, _):
        alone = (await collect(GenerationStub(channel).Generate(request("one", max_tokens=30))))[0]
        second: weakref.ref[Any] | None = None
        async with AsyncClient(f"127.0.0.1:{app.grpc_port}") as client:
            for directory, kind in (
                ("simulated-executor:instant", "simulated-executor"),
                ("simulated:instant", "simulated"),
            ):
                assert (await client.load_engine(directory)).engine == kind
                second = second or weakref.ref(serving_of(app).engine)
            with pytest.raises(ConflictError):
                await client.load_engine("simulated:nothing")
        await until(lambda: len(list(app._servings)) == 1)
        assert (await collect(GenerationStub(channel).Generate(request("one", max_tokens=30))))[0] == alone
        gc.collect()
        assert second is not None
        assert second() is None  # neither a task nor a metric keeps it


async def test_the_triton_wires_counters_grow_through_a_swap() -> None:
    async with running(FakeEngine(OLD), another=gives(FakeEngine(NEW))) as server:
        inference = GRPCInferenceServiceStub(server.channel)
        ask = wire.ModelInferRequest(model_name="ensemble")
        ask.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"Hi")
        ask.inputs.add(name="max_tokens", datatype="INT32", shape=[1]).contents.int_contents.append(20)
        await inference.ModelInfer(ask)
        await swap(server)
        answer = await inference.ModelInfer(ask)
        assert answer.raw_output_contents[0][4:].decode() == "Hi" + said(NEW, 20)
        (statistics,) = (await inference.ModelStatistics(wire.ModelStatisticsRequest(name="ensemble"))).model_stats
        assert statistics.inference_count == 2


# ---------------------------------------------------------------------- one after the other, where memory does not hold both


def replace(server: Running, directory: str = "new") -> Any:
    return server.operations.LoadEngine(pb.LoadEngineRequest(directory=directory, replace=True), timeout=120)


def fits_alone(engines: dict[str, FakeEngine], serves: FakeEngine) -> Load:
    """A machine that holds one engine."""
    loaded_now = [serves]

    def load(config: Config) -> Future[LoadedModel]:
        def one() -> LoadedModel:
            if not loaded_now[0]._closing.is_set():
                raise EngineMemoryError("memory: 2 engines, 1 has room")
            loaded_now[0] = engines[config.engine.directory]
            return loaded(loaded_now[0])

        return start_daemon(one, "loader")

    return load


async def test_where_memory_holds_one_a_swap_is_refused_and_replace_lets_streams_finish_first() -> None:
    old, new = FakeEngine(OLD, step_seconds=0.005, hold_at=100), FakeEngine(NEW)
    async with running(old, another=fits_alone({"new": new}, old)) as server:
        assert "(`--replace` closes it first)" in await refused(swap(server))
        streams = [
            asyncio.ensure_future(collect(server.generation.Generate(request(max_tokens=200)))) for _ in range(32)
        ]
        await until(lambda: len(old.live) == 32)
        swapping = asyncio.ensure_future(replace(server))
        await until(lambda: server.app.readiness.state is State.REPLACING)
        assert (await server.http("/readyz")) == (503, "replacing\n")
        for asked in (server.generation.Generate(request()), server.generation.Complete(request())):
            status, why = await code(collect(asked) if hasattr(asked, "__aiter__") else asked)
            assert status is grpc.StatusCode.UNAVAILABLE
            assert "being replaced" in str(why)
        old.hold_at = None
        assert [text for _, text, _ in await asyncio.gather(*streams)] == [said(OLD, 200)] * 32
        assert (await swapping).model == "fake"
        assert server.app.readiness.ready
        assert (await collect(server.generation.Generate(request(max_tokens=20))))[1] == said(NEW, 20)
        assert (await server.http("/readyz"))[0] == 200
        assert (await server.operations.GetLoad(pb.GetLoadRequest())).ready


async def test_the_command_says_what_to_do_and_does_it(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = FakeEngine(OLD), FakeEngine(NEW)
    async with running(old, another=fits_alone({"new": new}, old)) as server:
        swap_new = ["swap", "new", "--address", server.target]
        assert await asyncio.to_thread(main, swap_new) == 1
        assert "`--replace` closes it first" in capsys.readouterr().err
        assert await asyncio.to_thread(main, [*swap_new, "--replace"]) == 0
        assert capsys.readouterr().out.startswith("serving fake (simulated,")
        assert server.app._engine is new


async def test_what_cannot_be_loaded_anywhere_costs_nobody_the_engine_that_serves() -> None:
    old = FakeEngine(OLD)

    def check(config: Config) -> None:
        raise EngineLoadError("model.bin is missing")

    async with running(old, another=gives(FakeEngine()), check=check) as server:
        assert "model.bin is missing" in await refused(replace(server))
        assert server.app.readiness.ready
        assert not old._closing.is_set()


async def test_an_engine_that_fails_after_the_old_one_closed_brings_that_back() -> None:
    first, again = FakeEngine(OLD), FakeEngine(OLD)
    mute = FakeEngine(silent_steps=10**6)
    load = fits_alone({"new": mute, "simulated:first": again}, first)
    flags: dict[str, Any] = {"engine__directory": "simulated:first", "lifecycle__warm_up_timeout": 3}
    async with running(first, another=load, **flags) as server:
        await refused(replace(server))
        assert server.app._engine is again
        assert server.app.readiness.ready
        assert (await collect(server.generation.Generate(request(max_tokens=20))))[1] == said(OLD, 20)


async def test_where_nothing_can_be_loaded_any_more_the_process_ends() -> None:
    def fails(config: Config) -> Future[LoadedModel]:
        def load() -> LoadedModel:
            raise EngineLoadError("the disk is gone")

        return start_daemon(load, "loader")

    async with running(FakeEngine(OLD), another=fails) as server:
        await refused(replace(server))
        assert await server.over == 1
        assert server.app.readiness.state is State.FAILED


async def test_a_stream_that_outlives_the_grace_ends_with_a_status() -> None:
    old, new = FakeEngine(OLD, hold_at=50), FakeEngine(NEW)
    flags: dict[str, Any] = {"lifecycle__drain_grace": 0.2}
    async with running(old, another=fits_alone({"new": new}, old), **flags) as server:
        endless = asyncio.ensure_future(code(collect(server.generation.Generate(request(max_tokens=400)))))
        await until(lambda: len(old.live) == 1)
        await replace(server)
        assert await endless == (grpc.StatusCode.UNAVAILABLE, "the engine is being replaced")


async def test_a_shutdown_amid_a_replacement_is_orderly() -> None:
    release, new = threading.Event(), FakeEngine(NEW)

    def slow(config: Config) -> Future[LoadedModel]:
        def load() -> LoadedModel:
            release.wait(120)
            return loaded(new)

        return start_daemon(load, "loader")

    async with running(FakeEngine(OLD), another=slow) as server:
        swapping = asyncio.ensure_future(code(replace(server)))
        await until(lambda: server.app._engine is None)
        server.app.request_stop()
        assert await server.over == 0
        assert (await swapping)[0] in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        release.set()
