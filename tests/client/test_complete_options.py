"""Every option of generate() reaches the field that it means."""

from __future__ import annotations

import json

import pytest

from firsttoken.client.requests import GenerateOptions, generate_request
from firsttoken.errors import ArgumentError
from protos.firsttoken.v1 import generation_pb2 as pb
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
            "stop": ["x"],
            "include_stop": True,
            "min_tokens": 2,
            "ignore_end": True,
            "truncate_prompt": 9,
            "model": "m",
            "request_id": "r",
        },
    )
    sampling = pb.Sampling(
        repetition_penalty=1.5,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        no_repeat_ngram=3,
        logit_bias={5: -100.0},
        bad_words=["no"],
    )
    stop = pb.Stop(strings=["x"], include=True, min_tokens=2, ignore_end=True)
    prompt = pb.Prompt(text="Hi")
    expected = pb.GenerateRequest(
        prompt=prompt, sampling=sampling, stop=stop, truncate_prompt=9, model="m", request_id="r"
    )
    assert made == expected
    assert generate_request("Hi", {}) == pb.GenerateRequest(prompt=prompt)


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
    from firsttoken import AsyncClient

    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    async with serving(engine) as (app, _), AsyncClient(f"127.0.0.1:{app.grpc_port}") as client:
        stream = client.generate("Hi", max_tokens=30, json_schema=schema)
        assert json.loads(await stream.text()) in ({"a": 1}, {"a": 2})
        info = await client.server_info()
        assert info.limits.max_outputs == 16
