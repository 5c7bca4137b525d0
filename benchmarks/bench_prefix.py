"""What the prefix cache saves: the same 512-token prefix with a fresh tail, asked cold and then again, medians over rounds.

Every round has a prefix of its own, so that each first request is cold.
"""

from __future__ import annotations

import statistics
import time

import grpc
import numpy as np

from benchmarks.figure import Figure, at_most, equal
from benchmarks.served import serving
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import generation_pb2_grpc as rpc
from tests.engines_built import default_engine

ROUNDS = 7
PREFIX, TAIL = 512, 16


def figures() -> list[Figure]:
    cold: list[float] = []
    warm: list[float] = []
    cached: set[int] = set()
    random = np.random.default_rng(11)
    with serving(default_engine()) as server, grpc.insecure_channel(server.address) as channel:
        stub = rpc.GenerationStub(channel)
        first_token(stub, random.integers(1000, 40_000, PREFIX).tolist())
        for _ in range(ROUNDS):
            prefix = random.integers(1000, 40_000, PREFIX).tolist()
            for times in (cold, warm):
                seconds, reused = first_token(stub, prefix + random.integers(1000, 40_000, TAIL).tolist())
                times.append(seconds)
            cached.add(reused)
    share = 100 * statistics.median(warm) / statistics.median(cold)
    return [
        equal("tokens reported cached of a shared 512-token prefix", PREFIX, min(cached)),
        at_most("TTFT with a shared 512-token prefix, share of the cold one's, p50", 25, share, "%"),
    ]


def first_token(stub: rpc.GenerationStub, prompt: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and the prompt tokens that the server reports as cached."""
    request = pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=prompt)), max_tokens=2)
    started = time.perf_counter()
    first = 0.0
    for message in stub.Generate(request):
        first = first or time.perf_counter() - started
        if message.HasField("final"):
            return first, message.final.usage.cached_tokens
    raise RuntimeError("the stream ended without a final message")
