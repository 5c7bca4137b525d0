"""``retention``: what reaches the engine, and what is refused by name."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from engines.contract import Retention
from firsttoken import AsyncClient
from firsttoken import Retention as Wish
from protos.firsttoken.v1 import generation_pb2 as pb
from server.errors import InvalidRequestError
from server.rpc.retention_fields import check_retention, check_retention_length
from tests.e2e.whole_server import serving
from tests.fakes.running import collect, request, running, serving_of


def stretch(
    first: int = 0, end: int | None = None, priority: int | None = None, seconds: float | None = None
) -> pb.Retention:
    duration = None
    if seconds is not None:
        duration = Duration()
        duration.FromNanoseconds(round(seconds * 1e9))
    return pb.Retention(first=first, end=end, priority=priority, duration=duration)


def test_what_is_said_is_what_is_meant() -> None:
    checked = check_retention([stretch(0, 5, 90, 1.5), stretch(7, 9, 0), stretch(9)], offered=True)
    assert checked == (Retention(0, 5, 90, 1.5), Retention(7, 9, 0), Retention(9, None, 35))
    check_retention_length(checked, 10)
    assert check_retention([], offered=False) == ()


@pytest.mark.parametrize(
    ("stretches", "words"),
    [
        ([stretch(-1)], r"retention\[0\].first: must be at least 0, it is -1"),
        ([stretch(3, 3)], r"retention\[0\].end: must be above first, 3, it is 3"),
        ([stretch(0, 5), stretch(4)], r"retention\[1\].first: must be at least 5, it is 4"),
        ([stretch(0), stretch(4)], r"retention\[0\].end: is required where another entry follows"),
        ([stretch(0, 4, 101)], r"retention\[0\].priority: must be from 0 to 100, it is 101"),
        ([stretch(0, 4, -1)], r"retention\[0\].priority: must be from 0 to 100, it is -1"),
        ([stretch(0, 4, 1, 0.0)], r"retention\[0\].duration: must be above 0 s, it is 0 s"),
        ([stretch(at, at + 1) for at in range(17)], "retention: must have at most 16 entries, it has 17"),
        ([stretch(10)], r"retention\[0\].first: must be below the prompt's 10 tokens, it is 10"),
        ([stretch(0, 11)], r"retention\[0\].end: must be at most the prompt's 10 tokens, it is 11"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(stretches: list[pb.Retention], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        check_retention_length(check_retention(stretches, offered=True), 10)


async def test_an_engine_that_does_not_take_it_refuses_it() -> None:
    async with running() as server:
        with pytest.raises(grpc.aio.AioRpcError, match=r"capabilities\.retention") as refused:
            await collect(server.generation.Generate(request("Hello", max_tokens=1, retention=[stretch(0, 2)])))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_client_s_wish_keeps_a_prompt_through_a_flood() -> None:
    """The same flood twice: what was said to be worth most is still there, its equal is not."""
    async with (
        serving("simulated", lifecycle__warm_up=False) as (app, _),
        AsyncClient(f"127.0.0.1:{app.grpc_port}") as client,
    ):
        info = await client.server_info()
        assert info.capabilities.retention
        for letter, wishes in (("k", [Wish(priority=90, seconds=600)]), ("n", [])):
            await client.generate(letter * 512, max_tokens=0, retention=wishes).text()
        pool = serving_of(app).engine.info.block_count * info.limits.block_size
        size = info.limits.max_prompt_tokens
        for number in range(pool // size + 2):
            await client.generate([number + 1] * size, max_tokens=0).text()
        found = []
        for letter in "kn":
            stream = client.generate(letter * 512 + "!", max_tokens=1)
            await stream.text()
            found.append(stream.final.usage.cached_tokens)
        assert found == [512, 0]
