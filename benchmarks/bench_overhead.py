"""What the server adds to the runner: the same model, machine and prompts, bare and served in turn, medians over rounds.

Bare is benchmarks/bare.py in this process; served is `firsttoken serve` in a process of its own, asked over gRPC by this one.
Both use the same engine, step budget, thread count and prompts, greedily. Prompts are fresh in every round, so that the
prefix cache never helps. The client's own work runs on the same cores and counts against the server.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence

import grpc
import msgspec
import numpy as np

import engines.openvino
from benchmarks.bare import BareLoop
from benchmarks.figure import Figure, at_least, at_most
from benchmarks.served import Served, serving
from engines.openvino.loader import read_manifest
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import generation_pb2_grpc as rpc
from tests.engines_built import default_engine

ROUNDS = 7
SINGLE_ROUNDS, SINGLE_PROMPT, SINGLE_TOKENS = 25, 32, 32
CROWD, CROWD_PROMPT, CROWD_TOKENS = 16, 64, 64
STEP_TOKENS = 512


class ServedRun(msgspec.Struct, frozen=True):
    ttfts: list[float]
    gaps: list[float]
    tokens_per_second: float


def figures() -> list[Figure]:
    engine = default_engine()
    runner = engines.openvino.load(engine)
    bare = BareLoop(runner, STEP_TOKENS, frozenset(read_manifest(engine).tokenizer.end_ids))
    try:
        with serving(engine, "--scheduler.step_tokens", str(STEP_TOKENS)) as server:
            return asyncio.run(_compare(bare, server, runner.limits.vocab_size))
    finally:
        runner.close()


async def _compare(bare: BareLoop, server: Served, vocabulary: int) -> list[Figure]:
    prompts = _Prompts(vocabulary)
    ttfts: list[float] = []
    itls: list[float] = []
    shares: list[float] = []
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = rpc.GenerationStub(channel)
        await _ask_all(stub, prompts.take(CROWD, CROWD_PROMPT), 8)  # both warm
        bare.run(prompts.take(CROWD, CROWD_PROMPT), 8)
        for _ in range(SINGLE_ROUNDS):
            asked = prompts.take(1, SINGLE_PROMPT)
            alone, served = bare.run(asked, SINGLE_TOKENS), await _ask_all(stub, asked, SINGLE_TOKENS)
            ttfts.append(served.ttfts[0] - alone.ttfts[0])
            itls.append(statistics.median(served.gaps) - statistics.median(alone.gaps))
        for _ in range(ROUNDS):
            asked = prompts.take(CROWD, CROWD_PROMPT)
            crowd, served = bare.run(asked, CROWD_TOKENS), await _ask_all(stub, asked, CROWD_TOKENS)
            shares.append(served.tokens_per_second / crowd.tokens_per_second)
    return [
        at_least("throughput at 16 streams, share of the bare runner's", 90, 100 * statistics.median(shares), "%"),
        at_most("TTFT added at one stream, p50", 5, 1e3 * statistics.median(ttfts), "ms"),
        at_most("ITL added at one stream, p50", 0.5, 1e3 * statistics.median(itls), "ms"),
    ]


class _Prompts:
    """Never the same prompt twice."""

    def __init__(self, vocabulary: int) -> None:
        self._random = np.random.default_rng(7)
        self._vocabulary = vocabulary

    def take(self, count: int, length: int) -> list[list[int]]:
        drawn: list[list[int]] = self._random.integers(1000, self._vocabulary, (count, length)).tolist()
        return drawn


async def _ask_all(stub: rpc.GenerationStub, prompts: Sequence[Sequence[int]], max_tokens: int) -> ServedRun:
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
