"""What each of 32 concurrent streams says, against what it says alone: the f32 engine behind the real server, greedily.

Asked alone, then all at once under another cache salt (everything is computed anew, in mixed steps), then all at once under the
first salt (whatever the prefix cache has is taken from it).
"""

from __future__ import annotations

import asyncio

import grpc
import numpy as np

from benchmarks.figure import Figure, equal
from benchmarks.served import serving
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import generation_pb2_grpc as rpc
from tests.engines_built import f32_engine

STREAMS = 32


def figures() -> list[Figure]:
    with serving(f32_engine()) as server:
        cold, warm = asyncio.run(_compare(server.address))
    return [
        equal("f32 engine: streams of 32 concurrent ones that say what they say alone", STREAMS, cold),
        equal("the same out of the prefix cache", STREAMS, warm),
    ]


async def _compare(address: str) -> tuple[int, int]:
    random = np.random.default_rng(3)
    shapes = [(int(random.integers(3, 180)), 8 + stream) for stream in range(STREAMS)]
    prompts = [random.integers(1000, 40_000, length).tolist() for length, _ in shapes]
    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc.GenerationStub(channel)

        async def ask(stream: int, salt: str) -> list[int]:
            ids = pb.Prompt(token_ids=pb.TokenIds(ids=prompts[stream]))
            request = pb.GenerateRequest(prompt=ids, max_tokens=shapes[stream][1], cache_salt=salt)
            return [token async for message in stub.Generate(request) for token in message.delta.tokens]

        alone = [await ask(stream, "a") for stream in range(STREAMS)]
        cold = await asyncio.gather(*(ask(stream, "b") for stream in range(STREAMS)))
        warm = await asyncio.gather(*(ask(stream, "a") for stream in range(STREAMS)))
    return _agreeing(alone, cold), _agreeing(alone, warm)


def _agreeing(alone: list[list[int]], together: list[list[int]]) -> int:
    return sum(one == other for one, other in zip(alone, together, strict=True))
