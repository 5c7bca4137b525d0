"""Facts and load."""

from __future__ import annotations

from protos.firsttoken.v1 import operations_pb2 as pb
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


async def test_load_is_what_runs_now() -> None:
    async with running(FakeEngine(step_seconds=0.005)) as server:
        calls = [server.generation.Generate(request(max_tokens=200)) for _ in range(3)]
        await until(lambda: len(server.engine.live) == 3)
        load = await server.operations.GetLoad(pb.GetLoadRequest())
        assert load.ready
        assert (load.running, load.open_streams, load.kv_utilisation) == (3, 3, 3 / 64)
        for call in calls:
            call.cancel()
        await until(lambda: not server.engine.live)
        load = await server.operations.GetLoad(pb.GetLoadRequest())
        assert (load.running, load.open_streams) == (0, 0)
        await collect(server.generation.Generate(request(max_tokens=1)))
