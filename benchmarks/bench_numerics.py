"""What activations cost: ``python -m benchmarks.bench_numerics`` prints tokens a second of the default engine in f32 and in bf16.

The runner driven bare, alternating; medians. Needs a CPU that multiplies bfloat16, and nothing else running on it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

import engines.openvino
from benchmarks.bare import BareLoop
from engines.manifest import EngineManifest
from engines.openvino.loader import read_manifest
from tests.engines_built import default_engine

ROUNDS = 3
CHOICES = {"f32": "f16", "bf16": "bf16"}
"""Activations to the keys and values that go with them."""
STREAMS = (1, 4, 16, 32)
PROMPT, TOKENS = 512, 32


def main() -> None:
    manifest = read_manifest(default_engine())
    rates: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(ROUNDS):
        for activations, keys in CHOICES.items():
            for column, rate in _measure(manifest, activations, keys).items():
                rates[activations][column].append(rate)
    table = Table("activations", f"a {PROMPT}-token prompt", *(f"{streams} streams" for streams in STREAMS))
    for activations, columns in rates.items():
        table.add_row(activations, *(f"{statistics.median(values):.0f}" for values in columns.values()))
    Console().print(table)


def _measure(manifest: EngineManifest, activations: str, keys: str) -> dict[str, float]:
    numerics = msgspec.structs.replace(manifest.numerics, activations=activations, kv_cache=keys)
    runner = engines.openvino.load(default_engine(), manifest=msgspec.structs.replace(manifest, numerics=numerics))
    random = np.random.default_rng(1)

    def prompts(count: int, length: int) -> list[list[int]]:
        drawn: list[list[int]] = random.integers(1000, 40_000, (count, length)).tolist()
        return drawn

    try:
        loop = BareLoop(runner, PROMPT, frozenset())
        loop.run(prompts(1, PROMPT), 4)
        loop.run(prompts(max(STREAMS), 16), 4)
        rates = {"prompt": PROMPT / statistics.median(loop.run(prompts(1, PROMPT), 1).ttfts[0] for _ in range(3))}
        for streams in STREAMS:
            rates[str(streams)] = streams / statistics.median(loop.run(prompts(streams, 64), TOKENS).gaps)
        return rates
    finally:
        runner.close()


if __name__ == "__main__":
    main()
