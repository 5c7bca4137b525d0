"""A tensor as a graph wants it, whatever file it came from: dense values, or groups of small integers with their scales.

A :class:`Grouped` tensor is how block-quantised formats store a row: each run of ``codes.shape[2]`` values along the row
shares one scale and one zero point, and ``value = (code - zero) * scale``. Kept so, the engine reads a quarter of the
bytes and computes with exactly the numbers of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Codes: TypeAlias = NDArray[np.uint8] | NDArray[np.int8]


@dataclass(frozen=True)
class Dense:
    """Values as stored: float32, float16, or bfloat16 as its raw 16 bits (NumPy has no such type)."""

    values: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def to_float32(self) -> Floats:
        if self.values.dtype == np.uint16:
            bits = self.values.astype(np.uint32)
            bits <<= np.uint32(16)  # in place: a second float32 copy of the largest tensor would be the peak of a build
            widened: Floats = bits.view(np.float32)
            return widened
        return self.values.astype(np.float32, copy=False)

    def take_rows(self, order: NDArray[np.intp]) -> Dense:
        return Dense(self.values[order])


@dataclass(frozen=True)
class Grouped:
    """A matrix of ``rows`` x ``groups * group_size`` values."""

    codes: Codes
    """[rows, groups, group_size]; uint8 holding 0..15 where bits is 4, int8 where bits is 8."""
    scale: Floats
    """[rows, groups, 1]"""
    zero: Floats | None
    """[rows, groups, 1], in units of codes, not necessarily whole; None = 0."""
    bits: int

    @property
    def shape(self) -> tuple[int, ...]:
        rows, groups, size = self.codes.shape
        return rows, groups * size

    def to_float32(self) -> Floats:
        values = self.codes.astype(np.float32)
        if self.zero is not None:
            values -= self.zero
        values *= self.scale
        return values.reshape(self.shape)

    def take_rows(self, order: NDArray[np.intp]) -> Grouped:
        zero = None if self.zero is None else self.zero[order]
        return Grouped(self.codes[order], self.scale[order], zero, self.bits)


Weight: TypeAlias = Dense | Grouped


def stacked(weights: Sequence[Weight]) -> Weight | None:
    """One weight of all their rows, in order; None of none, and of weights that are not stored alike."""
    dense = [weight for weight in weights if isinstance(weight, Dense)]
    grouped = [weight for weight in weights if isinstance(weight, Grouped)]
    if len({_storage(weight) for weight in weights}) != 1:
        return None
    if dense:
        return Dense(np.concatenate([weight.values for weight in dense]))
    zeros = [weight.zero for weight in grouped if weight.zero is not None]
    codes = np.concatenate([weight.codes for weight in grouped])
    scale = np.concatenate([weight.scale for weight in grouped])
    return Grouped(codes, scale, np.concatenate(zeros) if zeros else None, grouped[0].bits)


def _storage(weight: Weight) -> tuple[object, ...]:
    """Equal for weights whose rows can stand in one matrix."""
    if isinstance(weight, Dense):
        return (weight.values.dtype, *weight.shape[1:])
    return (weight.codes.dtype, weight.bits, weight.zero is None, *weight.codes.shape[1:])


class TensorSource(Protocol):
    """Named tensors, read one at a time so that a build never holds the checkpoint and the result together."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Rows first, as NumPy counts."""
        ...

    def read(self, name: str) -> Weight:
        """The tensor in the checkpoint's own numbers. Raises UnsupportedError for a storage format without an exact form."""
        ...

    def read_float32(self, name: str) -> Floats:
        """The tensor dequantised, whatever its format."""
        ...
