"""No message gets past the boundary unchecked, whatever is in it."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.firsttoken.v1 import generation_pb2 as pb
from server.errors import InvalidRequestError
from server.rpc.limits import request_limits
from server.rpc.validation import check
from tests.e2e.whole_server import ENGINES, serving
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import collect, configure, request, running
from tests.rpc.wire_fuzz import KNOWN, fuzz

INFO = FakeEngine().info
LIMITS = request_limits(configure(), INFO)
COUNT = 1500
"""Wild requests on each engine; `make figures` sends 20,000."""
INVALID_ARGUMENT = 3
INT32 = st.one_of(st.integers(-3, 600), st.integers(-(2**31), 2**31 - 1))
FLOAT = st.floats(width=32)
TEXT = st.text(max_size=20)


def optional(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(st.none(), strategy)


PROMPTS = st.one_of(
    st.builds(pb.Prompt),
    st.builds(pb.Prompt, text=TEXT),
    st.builds(pb.Prompt, token_ids=st.builds(pb.TokenIds, ids=st.lists(INT32, max_size=8))),
    st.builds(
        pb.Prompt,
        messages=st.builds(pb.Messages, messages=st.lists(st.builds(pb.Message, role=TEXT, content=TEXT), max_size=3)),
    ),
)
REQUESTS = st.builds(
    pb.GenerateRequest,
    prompt=PROMPTS,
    max_tokens=optional(INT32),
    sampling=optional(
        st.builds(
            pb.Sampling,
            temperature=optional(FLOAT),
            top_k=optional(INT32),
            top_p=optional(FLOAT),
            min_p=optional(FLOAT),
            seed=optional(st.integers(0, 2**64 - 1)),
        )
    ),
    stop=optional(
        st.builds(pb.Stop, strings=st.lists(TEXT, max_size=18), token_ids=st.lists(INT32, max_size=5)),
    ),
    priority=st.integers(-1, 5),
    cache_salt=TEXT,
    n=optional(st.integers(0, 2)),
)


@settings(max_examples=200, deadline=None)
@given(message=REQUESTS, prompt_tokens=st.integers(0, 600))
def test_a_request_is_refused_by_name_or_within_every_limit_case_M6(
    message: pb.GenerateRequest, prompt_tokens: int
) -> None:
    try:
        built = check(message, LIMITS, INFO).build(
            [1] * prompt_tokens, LIMITS, INFO, request_id=1, arrival=0.0, deadline=None
        )
    except InvalidRequestError as error:
        top = error.field.partition(".")[0].partition("[")[0]
        assert top in {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields}
        return
    assert 1 <= len(built.prompt) < LIMITS.max_context
    assert 0 <= built.max_tokens <= LIMITS.max_context - len(built.prompt)
    assert all(0 <= token < LIMITS.vocab_size for token in built.stop_ids)
    assert 0 <= built.sampling.temperature <= 100
    assert 0 < built.sampling.top_p <= 1
    assert 0 <= built.sampling.min_p <= 1
    assert built.sampling.top_k >= 0
    assert 1 <= built.n <= LIMITS.max_outputs


async def test_random_bytes_do_not_stop_the_server_case_M6() -> None:
    async with running() as server:
        generate = server.channel.unary_stream("/firsttoken.v1.Generation/Generate")
        draw = random.Random(7)  # noqa: S311 - a replayable test
        good = request("Hello", max_tokens=3).SerializeToString()

        async def send(data: bytes) -> grpc.StatusCode:
            call = generate(data, timeout=60)
            try:
                async for _ in call:
                    pass
            except grpc.aio.AioRpcError as error:
                return error.code()
            return grpc.StatusCode.OK

        mutated = []
        for _ in range(300):
            data = bytearray(good + draw.randbytes(draw.randrange(6)))
            data[draw.randrange(len(data))] = draw.randrange(256)
            mutated.append(bytes(data))
        codes = await asyncio.gather(*(send(data) for data in mutated))
        assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DEADLINE_EXCEEDED}
        assert codes.count(grpc.StatusCode.INVALID_ARGUMENT) > 50
        await collect(server.generation.Generate(request(max_tokens=1)))


@pytest.mark.parametrize("engine", ENGINES)
async def test_wild_requests_on_both_wires_get_a_status_of_the_table_and_leave_nothing_behind_case_M6(
    engine: str,
) -> None:
    """The server's end checks that no stream, seat or block is held."""
    async with serving(engine) as (app, stub):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{app.grpc_port}") as channel:
            codes = await fuzz(channel, COUNT, seed=3)
        assert set(codes) <= KNOWN, codes
        assert sum(codes.values()) == COUNT
        assert codes[0] > COUNT // 20, "the fuzz must get past the boundary, too"
        assert codes[INVALID_ARGUMENT] > COUNT // 4
        assert (await stub.Complete(request("Still here?", max_tokens=2))).outputs[0].tokens
