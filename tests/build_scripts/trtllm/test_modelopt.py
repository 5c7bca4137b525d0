"""ModelOpt's quantised checkpoints come out sharded, number for number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.golden.tiny_models import tensor, tokens
from build_scripts.reference import ranks, unsharded
from build_scripts.safetensors_file import SafetensorsFile, SafetensorsWriter
from build_scripts.trtllm.convert import plan_conversion, write_checkpoint
from build_scripts.trtllm.layout import Layout
from build_scripts.trtllm.modelopt import ModelOptCheckpoint
from build_scripts.weights import Floats, Weight
from tests.build_scripts.tiny import BY_NAME, stored_shapes, write_model

MODEL = BY_NAME["llama-linear"]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
Stored = dict[str, tuple[str, NDArray[Any]]]


def small_float8(
    shape: tuple[int, ...], generator: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Random e4m3 codes with exponents 6 .. 8, and what they stand for, counted out by hand."""
    sign, exponent = generator.integers(0, 2, shape), generator.integers(6, 9, shape)
    mantissa = generator.integers(0, 8, shape)
    values = np.where(sign == 1, -1.0, 1.0) * (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return ((sign << 7) | (exponent << 3) | mantissa).astype(np.uint8), values


def fp8(shape: tuple[int, ...], generator: np.random.Generator, scale: float) -> tuple[Stored, NDArray[np.float64]]:
    codes, values = small_float8(shape, generator)
    number = np.float32(scale)
    stored: Stored = {"weight": ("F8_E4M3", codes), "weight_scale": ("F32", np.array(number))}
    return stored | {"input_scale": ("F32", np.array(np.float32(0.5)))}, values * number


def nvfp4(shape: tuple[int, ...], generator: np.random.Generator, scale: float) -> tuple[Stored, NDArray[np.float64]]:
    rows, columns = shape
    codes = generator.integers(0, 16, shape)
    values = np.where(codes >= 8, -1.0, 1.0) * E2M1[codes & 7]
    blocks, block_values = small_float8((rows, columns // 16), generator)
    blocks, block_values = np.asarray(blocks & 127, dtype=np.uint8), np.abs(block_values)
    packed = (codes[:, 0::2] | (codes[:, 1::2] << 4)).astype(np.uint8)
    number = np.float32(scale)
    stored: Stored = {"weight": ("U8", packed), "weight_scale": ("F8_E4M3", blocks)}
    stored |= {"weight_scale_2": ("F32", np.array(number)), "input_scale": ("F32", np.array(np.float32(0.5)))}
    return stored, values * np.repeat(block_values, 16, axis=1) * number


def awq(shape: tuple[int, ...], generator: np.random.Generator, scale: float) -> tuple[Stored, NDArray[np.float64]]:
    rows, columns = shape
    codes = generator.integers(-8, 8, shape)
    nibbles = (codes & 15).astype(np.uint8)
    packed = nibbles[0::2] | (nibbles[1::2] << 4)
    scales = (generator.uniform(0.5, 1.5, (rows, columns // 8)) * scale).astype(np.float32)
    before = np.random.default_rng(columns).uniform(0.5, 2.0, columns).astype(np.float32)  # fused projections share it
    stored: Stored = {"weight": ("U8", packed), "weight_scale": ("F32", scales), "pre_quant_scale": ("F32", before)}
    return stored, np.asarray(codes * np.repeat(scales.astype(np.float64), 8, axis=1) * before, dtype=np.float64)


QUANTISERS: dict[str, Callable[..., tuple[Stored, NDArray[np.float64]]]] = {
    "FP8": fp8,
    "NVFP4": nvfp4,
    "W4A16_AWQ": awq,
}


def write_quantised(
    directory: Path, algo: str, change: Callable[[Stored], object] = lambda _: None, **stated: Any
) -> dict[str, NDArray[Any]]:
    """A tiny checkpoint in ModelOpt's layout; returns what each weight stands for."""
    write_model(directory, MODEL)
    generator, stored, meaning = np.random.default_rng(5), Stored(), {}
    for name, shape in stored_shapes(MODEL.name).items():
        base = name.removesuffix(".weight")
        if not base.endswith("_proj"):
            stored[name] = ("F32", tensor(MODEL, name, shape))
            continue
        pieces, meaning[name] = QUANTISERS[algo](shape, generator, 0.02)
        stored |= {f"{base}.{suffix}": piece for suffix, piece in pieces.items()}
    change(stored)
    with SafetensorsWriter(
        directory / "model.safetensors", {name: (kind, values.shape) for name, (kind, values) in stored.items()}
    ) as writer:
        for name, (_, values) in stored.items():
            writer.write(name, values)
    quantization = {"quant_algo": algo, "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]} | stated
    (directory / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": quantization})
    )
    return meaning


class Meaning:
    """The quantised checkpoint as the floats that it stands for, in float64."""

    def __init__(self, checkpoint: ModelOptCheckpoint, meaning: dict[str, NDArray[Any]]) -> None:
        self._places, self._meaning = checkpoint._places, meaning

    def shapes(self) -> dict[str, tuple[int, ...]]:
        raise NotImplementedError

    def read(self, name: str) -> Weight:
        raise NotImplementedError

    def read_float32(self, name: str) -> Floats:
        stored = self._places[name].stored
        if stored in self._meaning:
            return self._meaning[stored]
        return tensor(MODEL, stored, stored_shapes(MODEL.name)[stored])


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("algo", QUANTISERS)
def test_codes_and_scales_mean_the_same_after_sharding(algo: str, tp: int, tmp_path: Path) -> None:
    meaning = write_quantised(tmp_path / "source", algo)
    checkpoint = ModelOptCheckpoint(tmp_path / "source")
    if algo == "NVFP4" and tp == 4:
        # 96 feed-forward values are six blocks of sixteen: four ranks would cut a block.
        with pytest.raises(UnsupportedError, match="tp 4 would cut through a block of"):
            convert(checkpoint, tmp_path / "ranks", Layout(tp, 1))
        return
    directory = convert(checkpoint, tmp_path / "ranks", Layout(tp, 2))
    expected = unsharded.log_probabilities(checkpoint.decoder, Meaning(checkpoint, meaning), tokens(MODEL))
    found = ranks.log_probabilities(directory, tokens(MODEL))
    assert np.abs(found - expected).max() < 1e-12
    assert json.loads((directory / "config.json").read_text())["quantization"]["quant_algo"] == algo


def convert(checkpoint: ModelOptCheckpoint, directory: Path, layout: Layout) -> Path:
    conversion = plan_conversion(checkpoint.decoder, layout, checkpoint.dtype, quantisation=checkpoint.quantisation)
    directory.mkdir()
    write_checkpoint(conversion, checkpoint, directory, lambda _: None)
    return directory


def test_names_and_types_are_those_of_tensorrt_llm(tmp_path: Path) -> None:
    write_quantised(tmp_path / "source", "NVFP4")
    directory = convert(ModelOptCheckpoint(tmp_path / "source"), tmp_path / "ranks", Layout(1, 1))
    entries = SafetensorsFile(directory / "rank0.safetensors").entries
    qkv = "transformer.layers.0.attention.qkv"
    assert {
        name.removeprefix(f"{qkv}."): (entry.dtype, entry.shape)
        for name, entry in entries.items()
        if name.startswith(qkv)
    } == {
        "weight": ("U8", (128, 32)),
        "weights_scaling_factor": ("F8_E4M3", (128, 4)),
        "weights_scaling_factor_2": ("F32", (1,)),
        "activation_scaling_factor": ("F32", (1,)),
    }


def test_the_cache_scale_is_the_greater_of_keys_and_values(tmp_path: Path) -> None:
    def add_scales(stored: Stored) -> None:
        for layer in range(2):
            for kind, value in (("k", 0.25), ("v", 0.5)):
                stored[f"model.layers.{layer}.self_attn.{kind}_proj.{kind}_scale"] = (
                    "F32",
                    np.array(np.float32(value)),
                )

    write_quantised(tmp_path / "source", "FP8", add_scales, kv_cache_quant_algo="FP8")
    directory = convert(ModelOptCheckpoint(tmp_path / "source"), tmp_path / "ranks", Layout(2, 1))
    for rank in range(2):
        file = SafetensorsFile(directory / f"rank{rank}.safetensors")
        assert file.read("transformer.layers.1.attention.kv_cache_scaling_factor") == [0.5]


def test_scales_folded_into_norms_are_ones(tmp_path: Path) -> None:
    def drop(stored: Stored) -> None:
        for name in [name for name in stored if name.endswith("pre_quant_scale") and "o_proj" not in name]:
            del stored[name]

    write_quantised(tmp_path / "source", "W4A16_AWQ", drop)
    directory = convert(ModelOptCheckpoint(tmp_path / "source"), tmp_path / "ranks", Layout(2, 1))
    file = SafetensorsFile(directory / "rank0.safetensors")
    assert (file.read("transformer.layers.0.attention.qkv.prequant_scaling_factor") == np.ones(64, np.float32)).all()
    assert file.read("transformer.layers.0.attention.dense.prequant_scaling_factor").shape == (32,)


def other_scale(stored: Stored) -> None:
    stored["model.layers.0.self_attn.k_proj.weight_scale"] = ("F32", np.array(np.float32(9)))


def plain_projection(stored: Stored) -> None:
    stored["model.layers.0.mlp.up_proj.weight"] = ("F32", np.ones((96, 64), np.float32))


def no_input_scale(stored: Stored) -> None:
    del stored["model.layers.1.mlp.down_proj.input_scale"]


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        (other_scale, UnsupportedError, r"k_proj\.weight_scale differs from .*q_proj\.weight_scale"),
        (plain_projection, UnsupportedError, r"up_proj\.weight is not quantised"),
        (no_input_scale, CheckpointError, r"lacks tensor model\.layers\.1\.mlp\.down_proj\.input_scale"),
    ],
)
def test_other_mixtures_are_refused(
    change: Callable[[Stored], object], kind: type[Exception], says: str, tmp_path: Path
) -> None:
    write_quantised(tmp_path / "source", "FP8", change)
    with pytest.raises(kind, match=says):
        convert(ModelOptCheckpoint(tmp_path / "source"), tmp_path / "ranks", Layout(1, 1))


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"quant_algo": "W4A8_AWQ"}, 'quant_algo "W4A8_AWQ" is not implemented; there are FP8'),
        ({"kv_cache_quant_algo": "INT8"}, 'kv_cache_quant_algo "INT8" is not implemented'),
        ({"has_zero_point": True}, "has_zero_point is not implemented"),
        ({"smoothquant_val": 0.5}, "smoothquant_val = 0.5 is not implemented"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(stated: dict[str, Any], says: str, tmp_path: Path) -> None:
    write_quantised(tmp_path, "FP8", **stated)
    with pytest.raises(UnsupportedError, match=says):
        ModelOptCheckpoint(tmp_path)
