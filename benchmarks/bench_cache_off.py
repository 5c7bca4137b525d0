"""What the prefix cache costs where it finds nothing: processor time per step, against the same server without it.

Two servers of the embedded engine take turns at the same load: eight streams at a time of random prompts that share nothing, in a pool
so small that every block that is written evicts another. Processor time and steps are the servers' own counts (/metrics).
"""

from __future__ import annotations

import re
import statistics
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np

from benchmarks.bench_startup import metrics_page
from benchmarks.figure import Figure, at_least, at_most
from benchmarks.served import Served, serving
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import generation_pb2_grpc as rpc
from tests.engines_built import default_engine

ROUNDS, STREAMS, REQUESTS = 4, 8, 8
PROMPT, OUTPUT = 256, 32
POOL = ("--engine.kv_bytes", str(200 * 1024 * 1024), "--scheduler.max_sequences", "16")


def figures() -> list[Figure]:
    random = np.random.default_rng(13)
    engine = default_engine()
    with serving(engine, *POOL) as on, serving(engine, *POOL, "--scheduler.prefix_cache", "false") as off:
        shares = []
        for turn in range(1 + ROUNDS):
            prompts = random.integers(1000, 40_000, (REQUESTS, PROMPT)).tolist()
            servers = (on, off) if turn % 2 else (off, on)
            cost = {server.process: _cpu_per_step(server, prompts) for server in servers}
            if turn:
                shares.append(cost[on.process] / cost[off.process])
        counts = _counts(on)
    evicting = counts['firsttoken_kv_blocks{state="cached"}'] > counts['firsttoken_kv_blocks{state="free"}']
    hits = counts["firsttoken_prefix_hit_tokens_total"] / counts["firsttoken_prompt_tokens_total"]
    spread = f"{min(shares):.3f} to {max(shares):.3f}"
    return [
        at_most("prompts that share nothing: share of tokens from the cache", 0.01, hits, ""),
        at_least("prompts that share nothing: the pool is full of cached blocks", 1, int(evicting), ""),
        at_most(
            f"processor time per step at no hits, times without a cache, p50 ({spread})",
            1.05,
            statistics.median(shares),
            "",
        ),
    ]


def _cpu_per_step(server: Served, prompts: list[list[int]]) -> float:
    before = _counts(server)
    with grpc.insecure_channel(server.address) as channel, ThreadPoolExecutor(STREAMS) as pool:
        stub = rpc.GenerationStub(channel)
        for _ in pool.map(lambda prompt: _generate(stub, prompt), prompts):
            pass
    after = _counts(server)
    cpu, steps = (after[name] - before[name] for name in ("process_cpu_seconds_total", "firsttoken_steps_total"))
    return cpu / steps


def _generate(stub: rpc.GenerationStub, prompt: list[int]) -> None:
    request = pb.GenerateRequest(
        prompt=pb.Prompt(token_ids=pb.TokenIds(ids=prompt)), max_tokens=OUTPUT, stop=pb.Stop(ignore_end=True)
    )
    for _ in stub.Generate(request):
        pass


def _counts(server: Served) -> dict[str, float]:
    lines = re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", metrics_page(server), re.MULTILINE)
    return {name: float(value) for name, value in lines}
