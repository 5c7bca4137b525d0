"""The API's log-probabilities on the default model, against the reference implementation's: as a prompt, cached or not, and as output."""

from __future__ import annotations

import asyncio

import pytest

from build_scripts.golden.reference import Golden, find_golden
from engines.openvino.loader import read_manifest
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from server.loading import load_model
from tests.engines_built import f32_engine
from tests.fakes.running import started

TOLERANCE = 2e-3
"""Of a log-probability, float32 against float32: what the engine's own build measures, with room for another processor."""
SEQUENCES = 3


def golden() -> Golden:
    found = find_golden(read_manifest(f32_engine()).source.sha256)
    assert found is not None
    return found


def whole(tokens: list[int], **fields: object) -> pb.GenerateRequest:
    ids = pb.Prompt(token_ids=pb.TokenIds(ids=tokens))
    message = pb.GenerateRequest(prompt=ids, max_tokens=0, logprobs=pb.Logprobs(prompt=True, top=2))
    message.MergeFrom(pb.GenerateRequest(**fields))  # type: ignore[arg-type]  # whatever the message takes
    return message


async def test_prompt_and_output_log_probabilities_are_the_references() -> None:
    async with started(load_model, engine__directory=str(f32_engine())) as (_, channel, _):
        stub = GenerationStub(channel)
        for sequence in golden().sequences[:SEQUENCES]:
            for _ in range(2):  # the second time the prompt is in the cache, and must not be read from there
                answer = await stub.Complete(whole(sequence.whole))
                scored = [position.logprob for position in answer.prompt.logprobs]
                assert answer.prompt.first_logprob == 1
                assert answer.final.usage.cached_tokens == 0
                assert scored == pytest.approx(sequence.logprobs[: len(scored)], abs=TOLERANCE)
                for position, token, lead in zip(answer.prompt.logprobs, sequence.argmax, sequence.lead, strict=False):
                    assert position.top[0].token == token or lead < 2 * TOLERANCE
            for salt in ("cold", ""):  # a salt of its own finds nothing in the cache, the scored prompt filled it
                cached = await as_output(stub, sequence.prompt, sequence.tokens, sequence.logprobs, salt)
                assert (cached > 0) == (salt == ""), cached


async def test_a_seed_says_the_same_alone_and_in_a_batch_on_the_f32_engine() -> None:
    """Law 3 with draws: penalties and two outputs included."""
    prompts = [sequence.prompt for sequence in golden().sequences[:6]]

    def seeded(number: int, salt: str) -> pb.GenerateRequest:
        return pb.GenerateRequest(
            prompt=pb.Prompt(token_ids=pb.TokenIds(ids=prompts[number])),
            max_tokens=8 + number,
            n=1 + number % 2,
            sampling=pb.Sampling(temperature=0.8, top_p=0.95, seed=number, repetition_penalty=1.1),
            cache_salt=salt,
        )

    async with started(load_model, engine__directory=str(f32_engine())) as (_, channel, _):
        stub = GenerationStub(channel)
        alone = [await stub.Complete(seeded(number, "a")) for number in range(6)]
        batch = await asyncio.gather(*(stub.Complete(seeded(number, "b")) for number in range(6)))
        said = [
            [[list(output.tokens) for output in answer.outputs] for answer in answers] for answers in (alone, batch)
        ]
        assert said[0] == said[1]


async def as_output(
    stub: GenerationStub, prompt: list[int], tokens: list[int], logprobs: list[float], salt: str
) -> int:
    """The greedy continuation is the reference's; how much of its prompt came out of the prefix cache."""
    count = len(tokens)
    answer = await stub.Complete(
        pb.GenerateRequest(
            prompt=pb.Prompt(token_ids=pb.TokenIds(ids=prompt)),
            max_tokens=count,
            logprobs=pb.Logprobs(),
            stop=pb.Stop(ignore_end=True),
            cache_salt=salt,
        )
    )
    assert list(answer.outputs[0].tokens) == tokens
    said = [position.logprob for position in answer.outputs[0].logprobs]
    first = len(prompt) - 1
    assert said == pytest.approx(logprobs[first : first + count], abs=TOLERANCE)
    return int(answer.final.usage.cached_tokens)
