"""Checkpoints that ModelOpt quantised and exported in Hugging Face's layout: FP8, NVFP4 and 4-bit AWQ.

Nothing is quantised here, and no number changes: codes and scales are renamed as TensorRT-LLM names them, and cut. ModelOpt
writes hf_quant_config.json and, beside each quantised ``weight``:

* FP8: ``weight_scale`` and ``input_scale``, one number each;
* NVFP4: two codes a byte along the row, ``weight_scale`` in float8 for each 16 values, ``weight_scale_2`` and
  ``input_scale``, one number each;
* W4A16_AWQ: two rows a byte, ``weight_scale`` for each group of a row, and ``pre_quant_scale`` by input value where it was
  not folded into the norm before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from build_scripts.casting import STORED_AS, FloatType, cast
from build_scripts.config_reader import ConfigReader
from build_scripts.decoder import Shape
from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.hf_checkpoint import open_shards, places, read_json
from build_scripts.hf_description import describe_config
from build_scripts.safetensors_file import Entry
from build_scripts.trtllm.config import Quantisation
from build_scripts.trtllm.recipe import Join, Output, Piece
from build_scripts.trtllm.targets import Part, Split, Target
from build_scripts.weights import Dense

CONFIG = "hf_quant_config.json"
_LINEAR = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_ONES = "ones:"
"""Key of a scale that the checkpoint leaves out because it is one throughout."""


@dataclass(frozen=True)
class _Tensor:
    """One of the tensors that a quantised weight comes in."""

    suffix: str
    """Behind the projection's name, in ModelOpt's spelling."""
    target: str
    """In TensorRT-LLM's."""
    stored: str | None
    """None = the model's own float type."""
    by: str
    """"matrix" is cut as the weight is, "input" along the weight's columns, "whole" is one number for all of it."""
    optional: bool = False


_SCALAR_INPUT = _Tensor("input_scale", "activation_scaling_factor", "F32", "whole")
_LAYOUTS: dict[str, tuple[_Tensor, ...]] = {
    "FP8": (
        _Tensor("weight", "weight", "F8_E4M3", "matrix"),
        _Tensor("weight_scale", "weights_scaling_factor", "F32", "whole"),
        _SCALAR_INPUT,
    ),
    "NVFP4": (
        _Tensor("weight", "weight", "U8", "matrix"),
        _Tensor("weight_scale", "weights_scaling_factor", "F8_E4M3", "matrix"),
        _Tensor("weight_scale_2", "weights_scaling_factor_2", "F32", "whole"),
        _SCALAR_INPUT,
    ),
    "W4A16_AWQ": (
        _Tensor("weight", "weight", "I8", "matrix"),
        _Tensor("weight_scale", "weights_scaling_factor", None, "matrix"),
        _Tensor("pre_quant_scale", "prequant_scaling_factor", None, "input", optional=True),
    ),
}


class ModelOptCheckpoint:
    """Implements Recipe. Opening reads configs and headers."""

    def __init__(self, directory: Path) -> None:
        """Raises CheckpointError or UnsupportedError, one sentence."""
        self.path = directory
        self.decoder = describe_config(read_json(directory / "config.json"))
        self.quantisation = _read_quantisation(read_json(directory / CONFIG))
        self._layout = _LAYOUTS[self.quantisation.quant_algo or ""]
        self._files = open_shards(directory)
        self._places = places(self.decoder)
        if self.decoder.family == "phi3":
            raise UnsupportedError("Phi-3's fused matrices are not implemented for quantised checkpoints")
        self.dtype = self._float_type()
        self._refuse_other_mixtures()

    def outputs(self, target: Target) -> list[Output]:
        if not target.name.endswith(".weight") or not self._is_quantised(target):
            pieces = tuple(
                Piece(self._stored(part.source), self._shape(part.source), part.split) for part in target.parts
            )
            return [Output(target.name, STORED_AS[self.dtype], pieces, shift=target.shift)]
        base = target.name.removesuffix(".weight")
        outputs = [self._output(tensor, base, target.parts) for tensor in self._layout]
        return outputs + self._cache_scale(base, target.parts)

    def read(self, output: Output, piece: Piece) -> NDArray[Any]:
        if piece.key.startswith(_ONES):
            return cast(Dense(np.ones(piece.shape, np.float32)), self.dtype, piece.key)
        file = self._files[piece.key]
        values = file.read(piece.key)
        if file.entries[piece.key].dtype in ("F32", "F16", "BF16"):
            target: FloatType = "float32" if output.stored == "F32" else self.dtype
            return cast(Dense(values.reshape(piece.shape)), target, piece.key, shift=output.shift)
        return values.view(np.int8) if output.stored == "I8" else values.reshape(piece.shape)

    def _output(self, tensor: _Tensor, base: str, parts: tuple[Part, ...]) -> Output:
        stored = tensor.stored or STORED_AS[self.dtype]
        if tensor.by == "matrix":
            pieces = tuple(self._piece(part, tensor, part.split) for part in parts)
            return Output(f"{base}.{tensor.target}", stored, pieces)
        columns = parts[0].split is Split.COLUMNS
        split = Split.ROWS if tensor.by == "input" and columns else Split.WHOLE
        pieces = tuple(self._piece(part, tensor, split) for part in parts)
        return Output(f"{base}.{tensor.target}", stored, pieces, Join.SAME)

    def _piece(self, part: Part, tensor: _Tensor, split: Split) -> Piece:
        key = f"{self._projection(part.source)}.{tensor.suffix}"
        if key not in self._files:
            if not tensor.optional:
                raise CheckpointError(f"the checkpoint lacks tensor {key}")
            return Piece(f"{_ONES}{key}", (self.decoder.tensors()[part.source][1],), split)
        # Numbers without a shape become one-element vectors, as TensorRT-LLM holds them.
        return Piece(key, self._files[key].entries[key].shape or (1,), split)

    def _cache_scale(self, base: str, parts: tuple[Part, ...]) -> list[Output]:
        if not base.endswith("attention.qkv") or self.quantisation.kv_cache_quant_algo is None:
            return []
        keys = [f"{self._projection(part.source)}.{kind}_scale" for part, kind in zip(parts[1:], "kv", strict=True)]
        for key in keys:
            if key not in self._files:
                raise CheckpointError(f"the checkpoint lacks tensor {key}")
        pieces = tuple(Piece(key, (1,), Split.WHOLE) for key in keys)
        name = f"{base.removesuffix('.qkv')}.kv_cache_scaling_factor"
        return [Output(name, "F32", pieces, Join.GREATEST)]

    def _is_quantised(self, target: Target) -> bool:
        return target.parts[0].source.split(".")[-2] in _LINEAR

    def _refuse_other_mixtures(self) -> None:
        """Every projection of every layer is quantised, and nothing else is: other mixtures are refused by name."""
        for source in self.decoder.tensors():
            if len(self.decoder.tensors()[source]) < 2:
                continue
            plain = self._entry(source).dtype in ("F32", "F16", "BF16")
            if plain == (source.split(".")[-2] in _LINEAR):
                state = "not quantised" if plain else "quantised"
                raise UnsupportedError(
                    f"{self._stored(source)} is {state}; implemented are checkpoints whose layers' projections are all "
                    "quantised and whose embedding and head are not"
                )

    def _projection(self, source: str) -> str:
        return self._stored(source).removesuffix(".weight")

    def _stored(self, source: str) -> str:
        stored = self._places[source].stored
        if stored not in self._files:
            raise CheckpointError(f"the checkpoint lacks tensor {stored}")
        return stored

    def _shape(self, source: str) -> Shape:
        found, wanted = self._entry(source).shape, self.decoder.tensors()[source]
        if found != wanted:
            raise CheckpointError(
                f"tensor {self._stored(source)} should have shape {wanted}, the checkpoint has {found}"
            )
        return found

    def _entry(self, source: str) -> Entry:
        stored = self._stored(source)
        return self._files[stored].entries[stored]

    def _float_type(self) -> FloatType:
        named: dict[str, FloatType] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
        dtype = self._entry("token_embd.weight").dtype
        if dtype not in named:
            raise CheckpointError(f"the embedding is stored as {dtype}; it is F32, F16 or BF16 in ModelOpt's exports")
        return named[dtype]


def _read_quantisation(values: dict[str, Any]) -> Quantisation:
    section = ConfigReader(values, CONFIG).section("quantization")
    if section is None:
        raise CheckpointError(f"{CONFIG} lacks quantization")
    algo = section.text("quant_algo")
    if algo not in _LAYOUTS:
        raise UnsupportedError(f'{CONFIG}: quant_algo "{algo}" is not implemented; there are {", ".join(_LAYOUTS)}')
    cache = section.text("kv_cache_quant_algo", "") or None
    if cache not in (None, "FP8"):
        raise UnsupportedError(f'{CONFIG}: kv_cache_quant_algo "{cache}" is not implemented; there is FP8')
    group = section.optional_whole("group_size")
    awq = algo == "W4A16_AWQ"
    if section.flag("has_zero_point", False):
        raise UnsupportedError(f"{CONFIG}: has_zero_point is not implemented")
    section.ignore(frozenset({"pre_quant_scale"}))
    section.ignore(frozenset({"exclude_modules"}))
    section.refuse_unread()
    return Quantisation(algo, cache, group, pre_quant_scale=awq, exclude_modules=("lm_head",))
