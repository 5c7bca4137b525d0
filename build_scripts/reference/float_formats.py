"""Small floats and packed codes as the numbers that they stand for, written from the formats' definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from build_scripts.reference.arithmetic import Array


def e4m3(bits: NDArray[np.uint8]) -> NDArray[np.float64]:
    """OCP 8-bit float: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, all ones is NaN."""
    return _E4M3[bits]


def _e4m3_table() -> NDArray[np.float64]:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude = np.where(codes & 127 == 127, np.nan, magnitude)
    return np.where(codes >= 128, -magnitude, magnitude)


_E4M3 = _e4m3_table()
_E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""OCP 4-bit float without its sign."""


def e2m1_pairs(packed: NDArray[np.uint8]) -> NDArray[np.float64]:
    """[rows, n / 2] bytes, the first of each pair in the low half, as [rows, n] numbers."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
    return np.asarray(np.where(codes >= 8, -1.0, 1.0) * _E2M1[codes & 7])


def int4_row_pairs(packed: NDArray[np.int8]) -> NDArray[np.float64]:
    """[n / 2, columns] bytes, the even row of each pair in the low half, as [n, columns] numbers in -8 .. 7."""
    bits = packed.view(np.uint8)
    codes = np.stack([bits & 15, bits >> 4], axis=1).reshape(-1, packed.shape[1]).astype(np.float64)
    return np.where(codes >= 8, codes - 16, codes)


def spread(scales: Array, columns: int) -> Array:
    """One scale for each run of a row, repeated over its run."""
    return np.repeat(scales, columns // scales.shape[1], axis=1)


def dequantise(algorithm: str, weight: NDArray[Any], scale: Array, global_scale: Array | None) -> Array:
    """The weight of a TensorRT-LLM rank file, [out, in]."""
    if algorithm == "FP8":
        return e4m3(weight) * scale
    if algorithm == "NVFP4":
        codes = e2m1_pairs(weight)
        return codes * spread(scale, codes.shape[1]) * (1.0 if global_scale is None else global_scale)
    if algorithm == "W4A16_AWQ":
        codes = int4_row_pairs(weight)
        return codes * spread(scale, codes.shape[1])
    raise ValueError(f"no formula for {algorithm}")
