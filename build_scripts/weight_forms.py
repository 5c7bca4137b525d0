"""The checkpoint's matrices in another storage form, made as they are read: half floats, int8 by row, int4 in groups.

Matrices only: norms and biases are small and stay as they are. The embedding is one row a token, and often the head as
well, so that four bits cost it the most and save the least: in int4 it is kept in int8.
"""

from __future__ import annotations

import numpy as np

from build_scripts.casting import cast, to_bfloat16
from build_scripts.errors import UnsupportedError
from build_scripts.numerics import WeightForm
from build_scripts.weights import Dense, Floats, Grouped, TensorSource, Weight

INT4_GROUP = 64
"""Values that share a scale and a zero point."""
WIDE = ("token_embd.weight", "output.weight")
_ROWS = 1024
"""Rows that are quantised together, so that no second float copy of a large matrix is held."""


class FormedSource:
    """A TensorSource that gives each matrix in the form asked for."""

    def __init__(self, source: TensorSource, form: WeightForm) -> None:
        self._source = source
        self._form = form

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._source.shapes()

    def read_float32(self, name: str) -> Floats:
        return self._source.read_float32(name)

    def read(self, name: str) -> Weight:
        if self._form == "gguf":
            return self._source.read(name)
        if self._form == "f32" or len(self._source.shapes()[name]) < 2:
            return Dense(self._source.read_float32(name))
        if self._form == "bf16":
            return self._bfloat16(name)
        if self._form == "f16":
            return Dense(cast(Dense(self._source.read_float32(name)), "float16", name))
        if self._form == "int4" and name not in WIDE:
            return int4_grouped(self._source.read_float32(name), name)
        stored = self._source.read(name)
        return int8_by_row(stored if isinstance(stored, Dense) else Dense(stored.to_float32()))

    def _bfloat16(self, name: str) -> Weight:
        stored = self._source.read(name)
        if isinstance(stored, Dense) and stored.values.dtype == np.uint16:
            return stored
        return Dense(to_bfloat16(stored.to_float32()))


def check_form(form: WeightForm, kind: str, formats: dict[str, str]) -> None:
    """Raises UnsupportedError for a form that a checkpoint of this kind and these storage formats cannot take."""
    if form == "gguf" and kind != "gguf":
        raise UnsupportedError(
            f"--weights gguf keeps a GGUF file's own codes, and this checkpoint is of kind {kind}: choose f32, f16, bf16, "
            "int8 or int4"
        )
    if form != "int4":
        return
    for name, stored in formats.items():
        if stored not in ("F32", "F16", "BF16"):
            # 4-bit codes of 4-bit codes keep neither's numbers.
            raise UnsupportedError(
                f"--weights int4 is made of floats, and tensor {name} is stored as {stored} already; keep the file's own codes"
            )


def int8_by_row(weight: Dense) -> Grouped:
    """Symmetric: the largest magnitude of a row becomes 127. Widened to float32 a run of rows at a time."""
    rows, columns = weight.shape
    codes, scales = np.empty((rows, columns), np.int8), np.empty((rows, 1), np.float32)
    for start in range(0, rows, _ROWS):
        part = slice(start, start + _ROWS)
        values = Dense(weight.values[part]).to_float32()
        scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
        scales[part] = np.where(scale == 0, np.float32(1), scale)
        codes[part] = np.clip(np.rint(values / scales[part]), -127, 127)
    return Grouped(codes.reshape(rows, 1, columns), scales.reshape(rows, 1, 1), None, bits=8)


def int4_grouped(values: Floats, name: str, group: int = INT4_GROUP) -> Grouped:
    """Asymmetric: a group's least value becomes 0, its greatest 15. Raises UnsupportedError where rows do not divide."""
    rows, columns = values.shape
    if columns % group:
        raise UnsupportedError(
            f"--weights int4 shares a scale among {group} values, tensor {name} has rows of {columns}"
        )
    groups = values.reshape(rows, columns // group, group)
    low = np.minimum(groups.min(axis=2, keepdims=True), np.float32(0))
    high = np.maximum(groups.max(axis=2, keepdims=True), np.float32(0))
    scale = ((high - low) / np.float32(15)).astype(np.float32)
    scale = np.where(scale == 0, np.float32(1), scale).astype(np.float32)
    zero = np.rint(-low / scale).astype(np.float32)
    codes = np.empty(groups.shape, np.uint8)
    for start in range(0, rows, _ROWS):
        part = slice(start, start + _ROWS)
        codes[part] = np.clip(np.rint(groups[part] / scale[part] + zero[part]), 0, 15)
    return Grouped(codes, scale, zero, bits=4)
