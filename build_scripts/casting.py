"""Stored floats from one type to another, a run of rows at a time, so that no second copy of a tensor in float32 is held."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from build_scripts.errors import CheckpointError
from build_scripts.weights import Dense, Floats

FloatType: TypeAlias = Literal["float32", "float16", "bfloat16"]
STORED_AS: dict[str, str] = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
NUMPY_TYPE: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}
"""bfloat16 is held as its raw bits."""

_CHUNK = 1 << 22


def float_type(values: NDArray[Any]) -> FloatType:
    return {"<f4": "float32", "<f2": "float16", "<u2": "bfloat16"}[values.dtype.str]  # type: ignore[return-value]


def cast(weight: Dense, target: FloatType, name: str, *, shift: float = 0.0) -> NDArray[Any]:
    """``weight + shift`` in the target type, rounded to nearest even. Raises CheckpointError where float16 would overflow."""
    values = weight.values
    if float_type(values) == target and not shift:
        return values
    flat, result = values.reshape(-1), np.empty(values.size, NUMPY_TYPE[target])
    for start in range(0, flat.size, _CHUNK):
        wide = Dense(flat[start : start + _CHUNK]).to_float32()
        result[start : start + _CHUNK] = _narrow(wide + np.float32(shift) if shift else wide, target, name)
    return result.reshape(values.shape)


def _narrow(wide: Floats, target: FloatType, name: str) -> NDArray[Any]:
    if target == "float32":
        return wide
    if target == "bfloat16":
        return to_bfloat16(wide)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16)
    if np.isinf(narrow).any():
        raise CheckpointError(f"tensor {name} holds {np.abs(wide).max():g}, beyond float16's 65504; use bfloat16")
    return narrow


def to_bfloat16(wide: Floats) -> NDArray[np.uint16]:
    """The upper half of each float's bits, rounded to nearest even. Finite input only."""
    bits = wide.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.asarray(rounded >> np.uint32(16), dtype=np.uint16)
