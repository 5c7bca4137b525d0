"""A tiny model written as GGUF the way llama.cpp's converter writes it gives transformers' log-probabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from build_scripts.errors import UnsupportedError
from build_scripts.gguf_checkpoint import GgufCheckpoint
from build_scripts.gguf_description import ROPE_FACTORS, describe
from build_scripts.golden.tiny_models import TinyModel, tokens
from build_scripts.hf_checkpoint import HfCheckpoint
from build_scripts.reference.unsharded import log_probabilities
from build_scripts.rope import plain
from tests.build_scripts.tiny import BY_NAME, golden, write_model


def interleave(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp's order of Llama's query and key rows: pairs side by side."""
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def write_gguf(directory: Path, model: TinyModel, kind: gguf.GGMLQuantizationType | None = None, **extra: Any) -> Path:
    source = HfCheckpoint(write_model(directory / "source", model))
    decoder, path = source.decoder, directory / "model.gguf"
    architecture = decoder.family
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(decoder.layers)
    writer.add_context_length(decoder.max_context)
    writer.add_embedding_length(decoder.hidden)
    writer.add_feed_forward_length(decoder.intermediate)
    writer.add_head_count(decoder.heads)
    writer.add_head_count_kv(decoder.kv_heads)
    writer.add_key_length(decoder.head_dim)
    writer.add_value_length(decoder.head_dim)
    writer.add_layer_norm_rms_eps(decoder.norm_epsilon)
    writer.add_rope_freq_base(decoder.rope.theta)
    for key, value in extra.items():
        getattr(writer, key)(value)
    for name in decoder.tensors():
        values = source.read_float32(name)
        heads = {"attn_q": decoder.heads, "attn_k": decoder.kv_heads}.get(name.split(".")[-2])
        if architecture == "llama" and heads:
            values = interleave(values, heads)
        if kind is not None and values.ndim == 2:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    if decoder.rope.scaling.kind == "llama3":
        factors = plain(decoder.rope.theta, decoder.rope.dims) / decoder.rope.frequencies(1)
        writer.add_tensor(ROPE_FACTORS, factors.astype(np.float32))
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()
    return path


def difference(path: Path, model: TinyModel) -> float:
    checkpoint = GgufCheckpoint(path)
    found = log_probabilities(describe(checkpoint), checkpoint, tokens(model))
    return float(np.abs(found[list(model.positions)] - golden(model.name)).max())


@pytest.mark.parametrize(
    "name", ["llama2", "llama-tied-wide-heads", "llama-biases-mqa", "llama3-scaled", "smollm2", "qwen2", "qwen3"]
)
def test_gguf_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    assert difference(write_gguf(tmp_path, BY_NAME[name]), BY_NAME[name]) < 2e-5


@pytest.mark.parametrize(
    ("name", "kind", "extra"),
    [
        ("llama-linear", gguf.RopeScalingType.LINEAR, {"add_rope_scaling_factor": 4.0}),
        (
            "llama-yarn",
            gguf.RopeScalingType.YARN,
            {"add_rope_scaling_factor": 4.0, "add_rope_scaling_orig_ctx_len": 16},
        ),
        (
            "qwen2-yarn",
            gguf.RopeScalingType.YARN,
            {"add_rope_scaling_factor": 4.0, "add_rope_scaling_orig_ctx_len": 16},
        ),
    ],
)
def test_scalings_in_metadata(name: str, kind: gguf.RopeScalingType, extra: dict[str, Any], tmp_path: Path) -> None:
    path = write_gguf(tmp_path, BY_NAME[name], add_rope_scaling_type=kind, **extra)
    assert difference(path, BY_NAME[name]) < 2e-5


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16"])
def test_read_and_read_float32_are_the_same_numbers(kind: str, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_gguf(tmp_path, BY_NAME["llama2"], gguf.GGMLQuantizationType[kind]))
    for name in describe(checkpoint).tensors():
        exact = checkpoint.read_float32(name)
        assert np.abs(checkpoint.read(name).to_float32() - exact).max() <= 4e-7 * np.abs(exact).max()


def test_a_feature_in_metadata_is_refused_by_its_key(tmp_path: Path) -> None:
    path = write_gguf(tmp_path, BY_NAME["llama2"], add_sliding_window=64)
    with pytest.raises(UnsupportedError, match=r"llama\.attention\.sliding_window = 64 is not implemented"):
        describe(GgufCheckpoint(path))


def test_another_scaling_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path, BY_NAME["llama2"], add_rope_scaling_type=gguf.RopeScalingType.LONGROPE)
    with pytest.raises(UnsupportedError, match=r'scaling\.type = "longrope" is not implemented'):
        describe(GgufCheckpoint(path))


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path, BY_NAME["phi3"])
    with pytest.raises(UnsupportedError, match='architecture "phi3" is not implemented in GGUF files'):
        describe(GgufCheckpoint(path))
