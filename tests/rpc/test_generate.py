"""Generate, over a real socket."""

from __future__ import annotations

from protos.firsttoken.v1 import generation_pb2 as pb
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import collect, request, running


async def test_streams_the_engines_output_and_ends_with_one_final() -> None:
    async with running(FakeEngine(output=b"hello world")) as server:
        call = server.generation.Generate(request("Hi", max_tokens=11))
        tokens, text, final = await collect(call)
        assert (bytes(tokens), text) == (b"hello world", "hello world")
        assert final.finish_reason == pb.FINISH_REASON_LENGTH
        assert (final.usage.prompt_tokens, final.usage.completion_tokens, final.usage.discarded_tokens) == (2, 11, 0)
        assert 0 <= final.timings.queued <= final.timings.first_token <= final.timings.total
        assert not final.HasField("seed")
        metadata = dict(await call.initial_metadata())
        assert metadata["firsttoken-request-id"]
