"""Every option of generate() reaches the field that it means."""

from __future__ import annotations

import asyncio
import json
from dataclasses import fields
from typing import Any

import pytest

from firsttoken import AsyncClient, CallCancelledError, Client, Message
from firsttoken.client import outputs, values
from firsttoken.client.options import GenerateOptions
from firsttoken.client.requests import generate_request
from firsttoken.errors import ArgumentError
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import operations_pb2 as ops
from tests.e2e.whole_server import ENGINES, serving


def test_options_are_the_fields_that_they_name() -> None:
    made = generate_request(
        "Hi",
        {
            "repetition_penalty": 1.5,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.25,
            "no_repeat_ngram": 3,
            "logit_bias": {5: -100.0},
            "bad_words": ["no"],
            "bad_tokens": [[1, 2], [3]],
            "n": 4,
            "logprobs": 0,
            "prompt_logprobs": True,
            "echo": True,
            "stop": ["x"],
            "include_stop": True,
            "min_tokens": 2,
            "ignore_end": True,
            "truncate_prompt": 9,
            "model": "m",
            "request_id": "r",
            "adapter": "a",
        },
    )
    sampling = pb.Sampling(
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        no_repeat_ngram=3,
        logit_bias={5: -100.0},
        bad_words=["no"],
        bad_tokens=[pb.TokenIds(ids=[1, 2]), pb.TokenIds(ids=[3])],
    )
    stop = pb.Stop(strings=["x"], include=True, min_tokens=2, ignore_end=True)
    prompt = pb.Prompt(text="Hi")
    expected = pb.GenerateRequest(
        prompt=prompt,
        sampling=sampling,
        stop=stop,
        truncate_prompt=9,
        model="m",
        request_id="r",
        adapter="a",
        n=4,
        logprobs=pb.Logprobs(top=0, prompt=True),
        echo=True,
    )
    assert made == expected
    assert generate_request("Hi", {}) == pb.GenerateRequest(prompt=prompt)
    assert generate_request("Hi", {"logprobs": 0}) == pb.GenerateRequest(prompt=prompt, logprobs=pb.Logprobs(top=0))
    assert generate_request("Hi", {"prompt_logprobs": False}) == pb.GenerateRequest(prompt=prompt)


def test_there_is_an_option_for_every_field_of_the_protocol() -> None:
    """Whoever adds a field to the protocol adds it to the client."""
    renamed = {"stop.strings": "stop", "stop.token_ids": "stop_token_ids", "stop.include": "include_stop"}
    renamed |= {"logprobs.top": "logprobs", "logprobs.prompt": "prompt_logprobs"}
    groups = {"sampling", "stop", "guide", "logprobs"}
    options = GenerateOptions.__annotations__.keys()
    for field in pb.GenerateRequest.DESCRIPTOR.fields:
        inner = field.message_type.fields if field.name in groups else [field]
        for each in inner:
            path = f"{field.name}.{each.name}" if field.name in groups else field.name
            named = renamed.get(path, each.name)
            assert named in options or named == "prompt", path


def test_what_a_server_says_of_itself_is_whole() -> None:
    """The values have the messages' fields, all of them."""
    for value, message in (
        (values.Limits, ops.Limits),
        (values.Capabilities, ops.EngineCapabilities),
        (values.ServerInfo, ops.GetServerInfoResponse),
        (values.Load, ops.GetLoadResponse),
        (values.Step, ops.Step),
        (values.StepRow, ops.StepRow),
        (outputs.Usage, pb.Usage),
        (outputs.Timings, pb.Timings),
        (outputs.Final, pb.Final),
        (outputs.OutputEnd, pb.OutputEnd),
        (outputs.PromptEcho, pb.PromptEvent),
        (outputs.Delta, pb.Delta),
        (outputs.Completion, pb.Completion),
        (outputs.Answer, pb.CompleteResponse),
    ):
        assert {each.name for each in fields(value)} == set(message.DESCRIPTOR.fields_by_name), value


def test_messages_carry_what_their_template_reads() -> None:
    call = {"id": "1", "function": {"name": "look", "arguments": "{}"}}
    messages: list[Message | dict[str, Any]] = [
        Message("user", "u", {"name": "Ann"}),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]
    tools = [{"type": "function", "function": {"name": "look"}}]
    made = generate_request(None, {"messages": messages, "tools": tools}).prompt.messages
    assert [(turn.role, turn.content) for turn in made.messages] == [("user", "u"), ("assistant", ""), ("tool", "42")]
    assert [json.loads(turn.extra) for turn in made.messages] == [
        {"name": "Ann"},
        {"tool_calls": [call]},
        {"tool_call_id": "1"},
    ]
    assert json.loads(made.tools) == tools
    assert generate_request(None, {"messages": [Message("user", "u")], "tools": "[]"}).prompt.messages.tools == "[]"


@pytest.mark.parametrize(
    ("options", "guide"),
    [
        ({"json_schema": {"type": "integer"}}, pb.Guide(json_schema='{"type": "integer"}')),
        ({"json_schema": "{}"}, pb.Guide(json_schema="{}")),
        ({"regex": "a+"}, pb.Guide(regex="a+")),
        ({"grammar": "start: /a/"}, pb.Guide(grammar="start: /a/")),
        ({"choice": ["a", "b"]}, pb.Guide(choice=pb.Choice(options=["a", "b"]))),
    ],
)
def test_guides(options: GenerateOptions, guide: pb.Guide) -> None:
    assert generate_request("Hi", options).guide == guide


def test_two_guides_and_what_is_no_json_are_refused_here() -> None:
    with pytest.raises(ArgumentError, match=r"at most one of .*, not json_schema and regex"):
        generate_request("Hi", {"regex": "a", "json_schema": "{}"})
    with pytest.raises(ArgumentError, match="json_schema: "):
        generate_request("Hi", {"json_schema": {"x": object()}})
    with pytest.raises(ArgumentError, match="logit_bias: "):
        generate_request("Hi", {"logit_bias": {"a": 1.0}})  # type: ignore[dict-item]  # what is tested


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_schema_holds_through_the_client(engine: str) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    async with serving(engine) as (app, _), AsyncClient(f"127.0.0.1:{app.grpc_port}") as client:
        stream = client.generate("Hi", max_tokens=30, json_schema=schema)
        assert json.loads(await stream.text()) in ({"a": 1}, {"a": 2})
        info = await client.server_info()
        assert info.limits.max_outputs == 16


async def test_several_outputs_log_probabilities_and_the_prompt_come_through_both_clients() -> None:
    """The stream, gathered, is the unary answer; both clients see the same."""
    asked: GenerateOptions = {
        "n": 3,
        "max_tokens": 6,
        "temperature": 1.0,
        "seed": 4,
        "logprobs": 2,
        "prompt_logprobs": True,
        "echo": True,
        "request_id": "mine",
    }
    async with serving("simulated") as (app, _), AsyncClient(f"127.0.0.1:{app.grpc_port}") as client:
        stream = client.generate("Hello", **asked)
        before = stream.request_id
        streamed = await stream.answer()
        assert (before, stream.request_id) == (None, "mine")
        whole = await client.complete("Hello", **asked)
        with Client(f"127.0.0.1:{app.grpc_port}") as sync:
            other = await asyncio.to_thread(lambda: sync.generate("Hello", **asked).answer())
    assert streamed.outputs == whole.outputs == other.outputs
    assert streamed.prompt == whole.prompt == other.prompt == stream.prompt
    assert streamed.final.outputs == whole.final.outputs
    assert len({output.text for output in whole.outputs}) == 3
    assert whole.prompt is not None
    assert whole.prompt.text == "Hello"
    assert len(whole.prompt.tokens) == whole.prompt.first_logprob + len(whole.prompt.logprobs) == 5
    for output in whole.outputs:
        assert len(output.logprobs) == len(output.tokens)
        for position in output.logprobs:
            assert len(position.top) == 2
            assert position.top[0].logprob >= position.top[1].logprob
            assert position.logprob <= position.top[0].logprob


async def test_the_text_of_a_stream_is_its_first_outputs_and_its_first_token_no_echo() -> None:
    async with serving("simulated") as (app, _), AsyncClient(f"127.0.0.1:{app.grpc_port}") as client:
        stream = client.generate("Hello", n=2, max_tokens=9, temperature=1.0, seed=3, echo=True)
        texts = {0: "", 1: ""}
        async for delta in stream:
            texts[delta.index] += delta.text
        assert await stream.text() == texts[0] != texts[1]
        only = client.generate("Hello", max_tokens=0, echo=True)
        assert (await only.answer()).prompt is not None
        assert only.first_token_seconds is None


async def test_a_request_is_aborted_by_the_id_that_its_stream_tells() -> None:
    async with (
        serving("simulated", "laptop", lifecycle__warm_up=False) as (app, _),
        AsyncClient(f"127.0.0.1:{app.grpc_port}") as client,
    ):
        stream = client.generate("Go on", max_tokens=8000)
        deltas = aiter(stream)
        await anext(deltas)
        assert stream.request_id
        assert (await client.steps(1))[0].rows
        assert await client.abort(stream.request_id)
        with pytest.raises(CallCancelledError) as caught:
            async for _delta in deltas:
                pass
        assert caught.value.request_id == stream.request_id
        assert not await client.abort(stream.request_id)
