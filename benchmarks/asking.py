"""A client that asks many prompts at once and says when each token came. Runs in a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import grpc
import msgspec

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import generation_pb2_grpc as rpc


class ServedRun(msgspec.Struct, frozen=True):
    """Seconds. Times are the client's, from just before the first request was sent."""

    ttfts: list[float]
    gaps: list[float]
    tokens_per_second: float


def answer(address: str, pipe: Connection) -> None:
    """For each (prompts, max_tokens) that comes through the pipe, ask them all at once and send the ServedRun back; None ends it."""
    asyncio.run(_answer(address, pipe))


async def _answer(address: str, pipe: Connection) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc.GenerationStub(channel)
        while (asked := await asyncio.to_thread(pipe.recv)) is not None:
            pipe.send(await ask_all(stub, *asked))


async def ask_all(stub: rpc.GenerationStub, prompts: Sequence[Sequence[int]], max_tokens: int) -> ServedRun:
    started = time.perf_counter()
    arrivals = await asyncio.gather(*(_ask(stub, prompt, max_tokens) for prompt in prompts))
    end = max(times[-1] for times in arrivals)
    gaps = [b - a for times in arrivals for a, b in itertools.pairwise(times)]
    return ServedRun([times[0] - started for times in arrivals], gaps, sum(map(len, arrivals)) / (end - started))


async def _ask(stub: rpc.GenerationStub, prompt: Sequence[int], max_tokens: int) -> list[float]:
    """When each token arrived."""
    request = pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=prompt)), max_tokens=max_tokens)
    times: list[float] = []
    async for message in stub.Generate(request):
        times += [time.perf_counter()] * len(message.delta.tokens)
    return times
