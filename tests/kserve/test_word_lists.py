"""Lists of words in token ids: single ones stop at the token, longer ones at their text; what cannot be one is refused by name."""

from __future__ import annotations

import grpc
import pytest

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.inference import grpc_service_pb2 as wire
from protos.inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from server.app import App
from tests.e2e.whole_server import say, serving

WARM = pb.Sampling(temperature=1.0, seed=11)


def ask(words: list[list[int]], name: str = "stop_words_list") -> wire.ModelInferRequest:
    """As TensorRT-LLM's preprocessing writes words: their tokens, then their ends, both padded."""
    tokens = [token for word in words for token in word]
    ends = [sum(map(len, words[: place + 1])) for place in range(len(words))]
    request = wire.ModelInferRequest(model_name="tensorrt_llm")
    tensors = {"input_ids": list(b"Tell me"), "input_lengths": [7], "request_output_len": [60]}
    tensors[name] = [*tokens, 0, *ends, *[-1] * (len(tokens) + 1 - len(ends))]
    for each, values in tensors.items():
        shape = [1, 2, len(values) // 2] if each == name else [1, len(values)]
        request.inputs.add(name=each, datatype="INT32", shape=shape).contents.int_contents.extend(values)
    request.inputs.add(name="temperature", datatype="FP32", shape=[1]).contents.fp32_contents.append(1.0)
    request.inputs.add(name="random_seed", datatype="UINT64", shape=[1]).contents.uint64_contents.append(11)
    return request


async def output_ids(app: App, request: wire.ModelInferRequest) -> tuple[list[int], str]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{app.grpc_port}") as channel:
        answer = await GRPCInferenceServiceStub(channel).ModelInfer(request)
    raw = {output.name: data for output, data in zip(answer.outputs, answer.raw_output_contents, strict=True)}
    ids = [int.from_bytes(raw["output_ids"][at : at + 4], "little") for at in range(0, len(raw["output_ids"]), 4)]
    return ids[7:], raw["finish_reason"][4:].decode()


async def test_a_word_of_several_tokens_ends_the_output_where_its_text_appears() -> None:
    async with serving("simulated") as (app, stub):
        whole = (await stub.Complete(say("Tell me", max_tokens=60, sampling=WARM))).outputs[0]
        text = whole.text.encode()
        word = list(text[20:24])
        assert len(set(word)) > 1
        ids, reason = await output_ids(app, ask([word, [5, 6]]))
        stop = pb.Stop(strings=[bytes(word).decode(), "\x05\x06"])
        native = (await stub.Complete(say("Tell me", max_tokens=60, sampling=WARM, stop=stop))).outputs[0]
        assert ids == list(native.tokens)
        assert ids == list(whole.tokens)[: text.index(bytes(word)) + len(word)]
        assert reason == "stop_string"
        ids, reason = await output_ids(app, ask([word[:1]]))
        assert ids == list(whole.tokens)[: text.index(bytes(word[:1]))]
        assert reason == "stop_token"


REFUSED: list[tuple[list[list[int]], str]] = [
    ([[5, 300]], r"stop_words_list\[1\]: must be from 0 to 258, it is 300"),
    ([[300]], r"stop_words_list: must be from 0 to 258, it is 300"),
    (
        [[0xF0, 0x9F]],
        r"stop_words_list: must have words of 1 token, or such as spell whole characters; \[240, 159\] do",
    ),
    ([[0x9F, 0x41]], r"stop_words_list: must have words of 1 token, or such as spell whole characters"),
    ([[65] * 1025], r"stop_words_list: must have words of at most 1024 tokens, one has 1025"),
    ([[65, 66]] * 17, r"stop_words_list: must have at most 16 words of several tokens"),
    ([[65]] * 65, r"stop_words_list: must have at most 64 entries"),
    ([[]], r"stop_words_list: must have ascending ends"),
]


async def test_what_cannot_stop_is_refused_by_name() -> None:
    async with serving("simulated") as (app, _):
        for words, problem in REFUSED:
            with pytest.raises(grpc.aio.AioRpcError, match=problem) as caught:
                await output_ids(app, ask(words))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_bad_words_of_several_tokens_never_come() -> None:
    async with serving("simulated") as (app, _):
        before, _ = await output_ids(app, ask([[1, 2]], "bad_words_list"))
        run = before[4:6]
        ids, _ = await output_ids(app, ask([run], "bad_words_list"))
        assert ids[:5] == before[:5]
        assert run not in [ids[at : at + 2] for at in range(len(ids))]
