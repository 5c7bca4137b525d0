"""A real OpenVINO engine with random weights, small enough to be built and loaded in a second."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import msgspec
import numpy as np
import openvino as ov

from build_scripts.decoder import Decoder
from build_scripts.graph import RECIPE, build_graph
from build_scripts.rope import Rope
from build_scripts.weights import Dense, Floats, Weight
from engines.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    EngineManifest,
    ModelShape,
    Numerics,
    Source,
    StepProfile,
    TokenizerInfo,
)

DECODER = Decoder(
    family="llama",
    layers=3,
    hidden=64,
    intermediate=128,
    heads=4,
    kv_heads=2,
    head_dim=32,
    vocab_size=512,
    max_context=512,
    norm_epsilon=1e-5,
    rope=Rope(theta=10000.0, dims=32),
    attention_scale=32**-0.5,
    tied_embeddings=False,
)


class RandomTensors:
    """Each tensor is drawn from its own name, so that the order of reading does not matter."""

    def __init__(self, decoder: Decoder = DECODER) -> None:
        self._shapes = decoder.tensors()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Weight:
        return Dense(self.read_float32(name))

    def read_float32(self, name: str) -> Floats:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        shape = self._shapes[name]
        values = np.random.default_rng(seed).standard_normal(shape)
        if len(shape) == 1:
            scaled = 1.0 + 0.1 * values
        elif name == "token_embd.weight":
            scaled = values
        else:
            # Strong enough that attention is sharp and the likeliest token is a clear one: an error must show.
            scaled = values * 2.0 / np.sqrt(shape[1])
        floats: Floats = scaled.astype(np.float32)
        return floats


def build_tiny_engine(directory: Path) -> None:
    """Write a stateful graph and its manifest."""
    model = build_graph(DECODER, RandomTensors(), dequantise=True, progress=lambda _: None)
    ov.save_model(model, str(directory / "model.xml"), compress_to_fp16=False)
    (directory / MANIFEST_NAME).write_bytes(msgspec.json.encode(_manifest()))


def add_wide_form(directory: Path, heads_for_keys: int = 2) -> None:
    """The same float32 numbers as a second form: where a step runs must not show at all."""
    decoder = dataclasses.replace(DECODER, kv_heads=heads_for_keys)
    model = build_graph(decoder, RandomTensors(decoder), dequantise=True, progress=lambda _: None)
    ov.save_model(model, str(directory / "wide.xml"), compress_to_fp16=False)


def _manifest() -> EngineManifest:
    return EngineManifest(
        schema_version=SCHEMA_VERSION,
        engine="openvino",
        built_at="2026-01-01T00:00:00Z",
        fingerprint="tiny",
        recipe=RECIPE,
        model=_shape(),
        source=Source(name="tiny", kind="random", origin="test", sha256="0" * 64, quantisation="none", licence="none"),
        numerics=Numerics(
            weights="f32",
            kv_cache="f32",
            activations="f32",
            dynamic_quantisation=False,
            batch_invariant=True,
            golden_positions=0,
            golden_argmax_agreement=1.0,
            golden_max_difference=0.0,
            golden_mean_difference=0.0,
            tolerance=1e-3,
        ),
        profile=StepProfile(0.001, 0.0, 0.0, 0.0, 0.0, machine="test", relative_error=1.0),
        tokenizer=TokenizerInfo(end_ids=(2,), bos_id=None, add_bos=False, chat_template=None, special_tokens={}),
        tools={},
        files=(),
    )


def _shape() -> ModelShape:
    return ModelShape(
        family=DECODER.family,
        layers=DECODER.layers,
        hidden=DECODER.hidden,
        intermediate=DECODER.intermediate,
        heads=DECODER.heads,
        kv_heads=DECODER.kv_heads,
        head_dim=DECODER.head_dim,
        vocab_size=DECODER.vocab_size,
        max_context=DECODER.max_context,
        parameters=DECODER.parameters(),
    )
