"""Facts and load."""

from __future__ import annotations

import asyncio

from protos.firsttoken.v1 import operations_pb2 as pb
from server.telemetry.patience import ENOUGH
from tests.e2e.whole_server import serving
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import collect, request, running, until


async def test_server_info_tells_every_limit_that_is_enforced() -> None:
    async with running(limits__default_max_tokens=33, admission__max_waiting_requests=44) as server:
        info = await server.operations.GetServerInfo(pb.GetServerInfoRequest())
        assert (info.engine, info.model, info.fingerprint) == ("simulated", "fake", "f" * 8)
        limits = {field.name: getattr(info.limits, field.name) for field in pb.Limits.DESCRIPTOR.fields}
        assert limits == {
            "vocab_size": 259,
            "max_context": 512,
            "max_prompt_tokens": 511,
            "default_max_tokens": 33,
            "max_message_bytes": 4 * 1024 * 1024,
            "max_stop_strings": 16,
            "max_stop_string_bytes": 1024,
            "max_stop_token_ids": 64,
            "max_cache_salt_bytes": 256,
            "max_sequences": 64,
            "max_waiting_requests": 44,
            "max_waiting_tokens": 1_000_000,
            "block_size": 16,
            "max_outputs": 16,
            "max_top_logprobs": 20,
            "max_logit_biases": 1024,
            "max_bad_words": 64,
            "max_bad_word_size": 128,
            "max_guide_bytes": 256 * 1024,
            "max_request_id_size": 128,
        }
        assert info.capabilities.batch_invariant
        assert not info.capabilities.score


async def test_clients_are_told_three_times_the_95th_percentile_of_their_class() -> None:
    async with running(telemetry__client_timeout=77, telemetry__client_timeout_floor=0.0001) as server:
        told = (await server.operations.GetServerInfo(pb.GetServerInfoRequest())).client_timeouts
        assert (told.interactive, told.standard, told.batch) == (77, 77, 77)
        answers = [collect(server.generation.Generate(request(max_tokens=2))) for _ in range(ENOUGH)]
        longest = max(final.timings.total for _, _, final in await asyncio.gather(*answers))
        told = (await server.operations.GetServerInfo(pb.GetServerInfoRequest())).client_timeouts
        assert 0 < told.interactive <= 3 * 1.05 * longest
        assert (told.standard, told.batch) == (77, 77)


async def test_load_tells_how_busy_the_engine_was() -> None:
    async with serving("simulated", "laptop", lifecycle__warm_up=False) as (app, stub):
        assert app._engine is not None
        before = app._engine.stats()
        assert (before.busy, before.predicted_seconds) == (0.0, 0.0)
        await collect(stub.Generate(request(max_tokens=40)))
        after = app._engine.stats()
        assert 0.0 < after.busy < 1.0
        assert after.predicted_seconds > 0.0
        assert 0.0 < after.step_cost_error < 1.0


async def test_load_is_what_runs_now() -> None:
    async with running(FakeEngine(hold_at=100)) as server:
        calls = [server.generation.Generate(request(max_tokens=200)) for _ in range(3)]
        await until(lambda: len(server.engine.live) == 3)
        load = await server.operations.GetLoad(pb.GetLoadRequest())
        assert load.ready
        assert (load.running, load.open_streams, load.kv_utilisation, load.busy) == (3, 3, 3 / 64, 0.5)
        for call in calls:
            call.cancel()
        await until(lambda: not server.engine.live)
        await until(lambda: not server.app._open_streams())
        load = await server.operations.GetLoad(pb.GetLoadRequest())
        assert (load.running, load.open_streams) == (0, 0)
        await collect(server.generation.Generate(request(max_tokens=1)))
