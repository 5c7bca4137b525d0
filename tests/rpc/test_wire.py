"""Messages that protobuf cannot parse get a status that says which field, and never more than a bounded look."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.firsttoken.v1 import generation_pb2 as pb
from server.errors import InvalidRequestError
from server.rpc.wire import MAX_FIELDS, Malformed, tolerant
from tests.fakes.running import collect, request, running

parse = tolerant(pb.GenerateRequest.FromString)


def broken(message: pb.GenerateRequest, marker: bytes) -> bytes:
    """The message's bytes with ``marker`` made invalid UTF-8 of equal length."""
    data = message.SerializeToString()
    assert data.count(marker) == 1
    return data.replace(marker, b"\xff" * len(marker))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (request("MARK"), "prompt.text"),
        (request(max_tokens=7, cache_salt="MARK"), "cache_salt"),
        (request(stop=pb.Stop(strings=["fine", "MARK"])), "stop.strings"),
        (
            pb.GenerateRequest(
                prompt=pb.Prompt(messages=pb.Messages(messages=[pb.Message(role="user", content="MARK")]))
            ),
            "prompt.messages.messages.content",
        ),
    ],
)
def test_bad_utf8_names_its_field(message: pb.GenerateRequest, field: str) -> None:
    result = parse(broken(message, b"MARK"))
    assert isinstance(result, Malformed)
    assert (result.error.field, result.error.problem) == (field, "is not valid UTF-8")


def test_what_parses_is_parsed() -> None:
    assert parse(request("é").SerializeToString()) == request("é")


@given(st.binary(max_size=200))
def test_any_bytes_give_a_message_or_an_explanation(data: bytes) -> None:
    result = parse(data)
    assert isinstance(result, pb.GenerateRequest | Malformed)


def look(data: bytes) -> InvalidRequestError:
    result = parse(data)
    assert isinstance(result, Malformed)
    return result.error


def test_the_look_is_bounded() -> None:
    padding = b"\x10\x01" * (MAX_FIELDS + 1)  # max_tokens, over and over
    bad_salt = b"\x32\x01\xff"
    assert look(padding + bad_salt).field == "message"
    assert look(padding[:20] + bad_salt).field == "cache_salt"


async def refusal(channel: Any, method: str, data: bytes) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(f"/firsttoken.v1.Generation/{method}")(data)
    return caught.value


async def test_over_the_wire_and_the_server_serves_on_case_M6() -> None:
    async with running() as server:
        data = broken(request("MARK"), b"MARK")
        for method in ("Generate", "Tokenize"):
            error = await refusal(server.channel, method, data)
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error.details() == "prompt.text: is not valid UTF-8"
        error = await refusal(server.channel, "Generate", b"\x0a\xff")
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error.details() == "message: the 2 bytes are no valid firsttoken.v1.GenerateRequest"
        await collect(server.generation.Generate(request(max_tokens=1)))


async def test_a_10_mb_message_is_refused_with_the_limit_before_it_is_read() -> None:
    async with running() as server:
        data = request("x" * 10_000_000).SerializeToString()
        error = await refusal(server.channel, "Generate", data)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(len(data)) in error.details()
        assert str(4 * 1024 * 1024) in error.details()
        await collect(server.generation.Generate(request(max_tokens=1)))
