"""The whole server on each kind of engine: what clients may rely on does not depend on what runs behind it."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from protos.firsttoken.v1 import generation_pb2 as pb
from tests.e2e.whole_server import ENGINES, say, serving
from tests.fakes.running import collect, serving_of, until

pytestmark = pytest.mark.parametrize("engine", ENGINES)


async def test_streams_give_together_what_each_gives_alone(engine: str) -> None:
    prompts = [f"Prompt number {number} " * (1 + number % 7) for number in range(32)]
    async with serving(engine) as (_, stub):
        alone = [await collect(stub.Generate(say(text, max_tokens=20 + len(text) % 30))) for text in prompts]
        calls = [collect(stub.Generate(say(text, max_tokens=20 + len(text) % 30))) for text in prompts]
        together = await asyncio.gather(*calls)
        assert [(tokens, text) for tokens, text, _ in together] == [(tokens, text) for tokens, text, _ in alone]
        assert all(final.usage.completion_tokens == len(tokens) for tokens, _, final in together)


async def test_a_shared_prefix_is_reported_case_F3(engine: str) -> None:
    prefix = "You are a helpful assistant. " * 20
    async with serving(engine) as (_, stub):
        _, _, first = await collect(stub.Generate(say(prefix + "First question?")))
        _, _, second = await collect(stub.Generate(say(prefix + "Second question?")))
        _, _, salted = await collect(stub.Generate(say(prefix + "Third question?", cache_salt="another tenant")))
        assert first.usage.cached_tokens == 0
        assert second.usage.cached_tokens >= len(prefix) - 32
        assert salted.usage.cached_tokens == 0


async def test_the_cache_is_told_alike_whoever_keeps_it(engine: str) -> None:
    """Cached blocks and evictions, whether the pool is ours or the executor's own."""
    async with serving(engine) as (app, stub):
        assert app._engine is not None
        pool = app._engine.info.block_count * app._engine.info.block_size
        await collect(stub.Generate(say("A prompt of more than one block of tokens. " * 3)))
        await until(lambda: app._engine is not None and app._engine.stats().blocks_cached > 0)
        evicted = app._engine.stats().blocks_evicted
        for turn in range(2 * pool // 4000 + 1):
            if app._engine.stats().blocks_evicted > evicted:
                break
            await collect(stub.Generate(say(f"{turn} " + "fills the pool " * 260, max_tokens=1)))
        assert app._engine.stats().blocks_evicted > evicted
        stats = app._engine.stats()
        told = stats.blocks_free + stats.blocks_cached + stats.blocks_in_use + stats.blocks_quarantined
        assert told == app._engine.info.block_count


async def test_stops_cut_where_the_text_says_and_what_is_counted_adds_up(engine: str) -> None:
    async with serving(engine) as (_, stub):
        tokens, text, _ = await collect(stub.Generate(say("Tell me", max_tokens=60)))
        stop = text[20:23]
        cut = text.index(stop)
        got, shorter, final = await collect(stub.Generate(say("Tell me", max_tokens=60, stop=pb.Stop(strings=[stop]))))
        assert (shorter, final.finish_reason) == (text[:cut], pb.FINISH_REASON_STOP_STRING)
        assert final.usage.completion_tokens == len(got) == cut + len(stop)
        assert got == tokens[: len(got)]
        assert final.usage.completion_tokens + final.usage.discarded_tokens <= 60
        _, by_id, final = await collect(stub.Generate(say("Tell me", stop=pb.Stop(token_ids=[tokens[9]]))))
        assert by_id == text[: tokens.index(tokens[9])]
        assert final.finish_reason == pb.FINISH_REASON_STOP_TOKEN


async def test_zero_tokens_fill_the_prefix_cache(engine: str) -> None:
    async with serving(engine) as (_, stub):
        text = "A system prompt that many will share. " * 10
        tokens, _, final = await collect(stub.Generate(say(text, max_tokens=0)))
        assert (tokens, final.finish_reason, final.usage.completion_tokens) == ([], pb.FINISH_REASON_LENGTH, 0)
        _, _, after = await collect(stub.Generate(say(text + "Now?")))
        assert after.usage.cached_tokens > 300


async def test_a_cancel_frees_the_seat_case_D1_D9(engine: str) -> None:
    async with serving(engine, "laptop", lifecycle__warm_up=False) as (app, stub):
        calls = [stub.Generate(say(f"Go on {number}", max_tokens=2000)) for number in range(8)]
        await asyncio.gather(*(call.read() for call in calls))
        facade = serving_of(app).engine
        await until(lambda: facade.stats().running == 8)  # the snapshot is renewed once a turn
        for call in calls:
            call.cancel()
        await until(lambda: facade.stats().running == 0)


async def test_a_ttft_deadline_ends_what_still_waits_case_E2_E3(engine: str) -> None:
    async with serving(engine, "laptop", scheduler__max_sequences=1, lifecycle__warm_up=False) as (_, stub):
        blocker = stub.Generate(say("Long", max_tokens=2000))
        await blocker.read()
        late = stub.Generate(say("Late", ttft_deadline=Duration(nanos=300_000_000)))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await collect(late)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert caught.value.details().startswith("ttft_deadline")
        blocker.cancel()
