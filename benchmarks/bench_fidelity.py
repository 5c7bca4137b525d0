"""How true the engines are to the reference implementation (Hugging Face transformers, float32), on the committed golden data."""

from __future__ import annotations

import engines.openvino
from benchmarks.bare import BareLoop
from benchmarks.figure import Figure, at_least, at_most, equal
from build_scripts.golden.reference import find_golden
from engines.openvino.loader import read_manifest
from tests.engines_built import default_engine, f32_engine

FLOOR = 97.0
"""Per cent: what verification itself demands of bf16 activations before it publishes an engine."""


def figures() -> list[Figure]:
    golden = find_golden(read_manifest(f32_engine()).source.sha256)
    if golden is None:
        raise RuntimeError("no golden data is committed for the default model")
    runner = engines.openvino.load(f32_engine())
    try:
        loop = BareLoop(runner, 512, frozenset())
        streams = loop.run([sequence.prompt for sequence in golden.sequences], 48).streams
    finally:
        runner.close()
    same = sum(stream.tokens == list(s.tokens[:48]) for stream, s in zip(streams, golden.sequences, strict=True))
    numerics = read_manifest(default_engine()).numerics
    name = f"default engine ({numerics.activations}, {numerics.kv_cache} keys and values)"
    return [
        equal("f32 engine: prompts of 8 whose 48 greedy tokens are Hugging Face's", len(golden.sequences), same),
        at_least(f"{name}: argmax agreement with float32", FLOOR, 100 * numerics.golden_argmax_agreement, "%"),
        at_most(f"{name}: mean difference of log-probabilities", 0.1, numerics.golden_mean_difference, ""),
    ]
