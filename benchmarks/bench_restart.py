"""What a saved prefix cache saves: the first token of a prompt whose 512-token prefix is known from before a restart, against a cold one.

Every round starts the server once more, on the file that the round before left; the cold prompts and the known ones take turns.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import grpc
import numpy as np

from benchmarks.bench_prefix import PREFIX, TAIL, first_token
from benchmarks.bench_startup import PARTS, metrics_page
from benchmarks.figure import Figure, at_most, equal
from benchmarks.served import serving
from protos.firsttoken.v1 import generation_pb2_grpc as rpc
from tests.engines_built import default_engine

RESTARTS, EACH = 3, 5
"""Starts after the first one, and prefixes that each finds."""


def figures() -> list[Figure]:
    random = np.random.default_rng(12)
    cold: list[float] = []
    warm: list[float] = []
    reused: set[int] = set()
    restore: list[float] = []

    def ask(stub: rpc.GenerationStub, prefix: list[int]) -> tuple[float, int]:
        return first_token(stub, prefix + random.integers(1000, 40_000, TAIL).tolist())

    known: list[list[int]] = []
    with tempfile.TemporaryDirectory() as folder:
        for start in range(1 + RESTARTS):
            fresh = [random.integers(1000, 40_000, PREFIX).tolist() for _ in range(EACH)]
            with (
                serving(default_engine(), "--cache.save_path", str(Path(folder) / "kv")) as server,
                grpc.insecure_channel(server.address) as channel,
            ):
                stub = rpc.GenerationStub(channel)
                ask(stub, random.integers(1000, 40_000, PREFIX).tolist())
                for number, prefix in enumerate(fresh):
                    seconds, _ = ask(stub, prefix)
                    if start:
                        cold.append(seconds)
                        seconds, cached = ask(stub, known[number])
                        warm.append(seconds)
                        reused.add(cached)
                restore.append(dict(PARTS.findall(metrics_page(server))).get("cache_restore", 0.0))
            known = fresh
    share = statistics.median(warm) / statistics.median(cold)
    seconds = max(float(value) for value in restore)
    return [
        equal("tokens reported cached of a 512-token prefix known from before a restart", PREFIX, min(reused)),
        at_most(
            f"TTFT of such a prompt, times the cold one's, p50 (restoring took {seconds:.2f} s at most)", 0.5, share, ""
        ),
    ]
