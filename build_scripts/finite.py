"""Weights that are NaN or infinite, found as they are read: an engine of them would run, and answer nonsense."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from build_scripts.errors import CheckpointError

_CHUNK = 1 << 22
"""Values looked at together, so that the search costs no second copy of a tensor."""

_EXPONENT = {np.dtype("<f4"): ("<u4", 0x7F800000), np.dtype("<f2"): ("<u2", 0x7C00), np.dtype("<u2"): ("<u2", 0x7F80)}
"""Bits that are all set in an infinity or NaN, by how the values are held."""


def refuse_not_finite(values: NDArray[Any], stored: str) -> None:
    """``values``: float32, float16, or bfloat16 as raw bits. Raises CheckpointError saying where the first one is."""
    raw, exponent = _EXPONENT[values.dtype]
    bits = values.reshape(-1).view(raw)
    for start in range(0, bits.size, _CHUNK):
        wild = np.flatnonzero((bits[start : start + _CHUNK] & exponent) == exponent)
        if wild.size:
            where = tuple(int(index) for index in np.unravel_index(start + int(wild[0]), values.shape))
            raise CheckpointError(f"tensor {stored} holds a value that is not finite, the first at {where}")
