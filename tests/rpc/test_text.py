"""Tokenize, Detokenize, and the three kinds of prompt."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from protos.firsttoken.v1 import generation_pb2 as pb
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import collect, request, running

TURN_START, TURN_END = 257, 258
CONVERSATION = pb.Prompt(messages=pb.Messages(messages=[pb.Message(role="user", content="Hé")]))


async def refused(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return str(caught.value.details())


async def test_tokenize_gives_what_generate_sees() -> None:
    async with running() as server:
        for prompt in (pb.Prompt(text="Hé" * 200), pb.Prompt(text="Hé"), CONVERSATION):
            ids = (await server.generation.Tokenize(pb.TokenizeRequest(prompt=prompt))).ids
            if len(ids) < 512:
                await collect(server.generation.Generate(pb.GenerateRequest(prompt=prompt, max_tokens=1)))
                assert server.engine.submitted[-1].prompt == tuple(ids)
        assert tuple(ids) == (TURN_START, *"user\nHé".encode(), TURN_END, 10, TURN_START, *b"assistant\n")
        assert "tokens already" in await refused(
            server.generation.Tokenize(pb.TokenizeRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[1]))))
        )


async def test_detokenize_hides_special_tokens_unless_asked() -> None:
    async with running() as server:
        ids = [*"é".encode(), TURN_START]
        assert (await server.generation.Detokenize(pb.DetokenizeRequest(ids=ids))).text == "é"
        shown = pb.DetokenizeRequest(ids=ids, show_special_tokens=True)
        assert (await server.generation.Detokenize(shown)).text == "é<|im_start|>"
        assert (await server.generation.Detokenize(pb.DetokenizeRequest(ids=[0xFF]))).text == "\ufffd"
        assert "ids[1]: must be from 0 to 258, it is 999" in await refused(
            server.generation.Detokenize(pb.DetokenizeRequest(ids=[1, 999]))
        )
        assert "ids: must have at least 1" in await refused(server.generation.Detokenize(pb.DetokenizeRequest()))


async def test_a_model_without_a_template_refuses_conversations_by_name() -> None:
    async with running(template=False) as server:
        message = await refused(server.generation.Tokenize(pb.TokenizeRequest(prompt=CONVERSATION)))
        assert message == "prompt.messages: the model has no chat template; use prompt.text"


async def test_characters_split_over_tokens_come_whole_case_G1() -> None:
    async with running(FakeEngine(output="héé😀".encode())) as server:
        call = server.generation.Generate(request(max_tokens=9))
        texts = [message.delta.text async for message in call]
        assert "".join(texts) == "héé😀"
        assert "\ufffd" not in "".join(texts)


@pytest.mark.parametrize(
    ("stop", "text", "reason", "completion"),
    [
        (pb.Stop(strings=["lazy"]), "the quick brown fox jumps over the ", pb.FINISH_REASON_STOP_STRING, 39),
        (pb.Stop(token_ids=[ord("k")]), "the quic", pb.FINISH_REASON_STOP_TOKEN, 9),
        (pb.Stop(), "the quick brown fox", pb.FINISH_REASON_END, 20),
    ],
)
async def test_each_kind_of_stop_case_G5_G6_G7(stop: pb.Stop, text: str, reason: int, completion: int) -> None:
    output = b"the quick brown fox" if reason == pb.FINISH_REASON_END else FakeEngine().output
    async with running(FakeEngine(output=output, ends=True)) as server:
        _, got, final = await collect(server.generation.Generate(request(stop=stop, max_tokens=100)))
        assert (got, final.finish_reason, final.usage.completion_tokens) == (text, reason, completion)
        assert final.stop_string == ("lazy" if reason == pb.FINISH_REASON_STOP_STRING else "")


async def test_a_seed_is_echoed_and_drawn_where_it_is_unset() -> None:
    async with running() as server:
        for given in (5, None):
            message = request(sampling=pb.Sampling(temperature=1, seed=given), max_tokens=1)
            _, _, final = await collect(server.generation.Generate(message))
            assert final.seed == server.engine.submitted[-1].sampling.seed
            assert given is None or final.seed == given
