"""The checkpoint's matrices in another storage form, made as they are read: bfloat16, int8 by row, int4 in groups.

Matrices only: norms and biases are small and stay as they are. The embedding is one row a token, and often the head as
well, so that four bits cost it the most and save the least: in int4 it is kept in int8.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from build_scripts.casting import to_bfloat16
from build_scripts.errors import UnsupportedError
from build_scripts.weights import Dense, Floats, Grouped, TensorSource, Weight

WeightForm: TypeAlias = Literal["source", "f32", "bf16", "int8", "int4"]
"""source = the checkpoint's own numbers, as stored."""

INT4_GROUP = 64
"""Values that share a scale and a zero point."""
_WIDE = ("token_embd.weight", "output.weight")
_ROWS = 4096
"""Rows that are quantised together, so that no second float copy of a large matrix is held."""


class FormedSource:
    """A TensorSource that gives each matrix in the form asked for."""

    def __init__(self, source: TensorSource, form: WeightForm) -> None:
        """Raises UnsupportedError where int4 is asked of a checkpoint that is quantised already: 4-bit codes of 4-bit codes
        keep neither's numbers."""
        self._source = source
        self._form = form

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._source.shapes()

    def read_float32(self, name: str) -> Floats:
        return self._source.read_float32(name)

    def read(self, name: str) -> Weight:
        if self._form == "source":
            return self._source.read(name)
        if self._form == "f32" or len(self._source.shapes()[name]) < 2:
            return Dense(self._source.read_float32(name))
        if self._form == "bf16":
            return self._bfloat16(name)
        if self._form == "int4":
            self._refuse_quantised(name)
            if name not in _WIDE:
                return int4_grouped(self._source.read_float32(name), name)
        return int8_by_row(self._source.read_float32(name))

    def _bfloat16(self, name: str) -> Weight:
        stored = self._source.read(name)
        if isinstance(stored, Dense) and stored.values.dtype == np.uint16:
            return stored
        return Dense(to_bfloat16(stored.to_float32()))

    def _refuse_quantised(self, name: str) -> None:
        if isinstance(self._source.read(name), Grouped):
            raise UnsupportedError(
                f"--weights int4 is made of floats, and tensor {name} is quantised already; keep the checkpoint's own codes"
            )


def int8_by_row(values: Floats) -> Grouped:
    """Symmetric: the largest magnitude of a row becomes 127."""
    rows, columns = values.shape
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scale = np.where(scale == 0, np.float32(1), scale).astype(np.float32)
    codes = np.empty((rows, columns), np.int8)
    for start in range(0, rows, _ROWS):
        part = slice(start, start + _ROWS)
        codes[part] = np.clip(np.rint(values[part] / scale[part]), -127, 127)
    return Grouped(codes.reshape(rows, 1, columns), scale.reshape(rows, 1, 1), None, bits=8)


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
