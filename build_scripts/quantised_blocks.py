"""GGML's block formats as groups of small integers, number for number.

A block holds 32 values of one row: half-precision constants first, then the codes. Layouts are those of ggml-common.h
(block_q4_0, block_q4_1, block_q8_0). Input is the raw bytes of a matrix, [rows, bytes per row].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from build_scripts.weights import Floats, Grouped

GROUP = 32
"""Values in one block."""

Bytes = NDArray[np.uint8]


def _blocks(raw: Bytes, block_bytes: int) -> Bytes:
    return raw.reshape(raw.shape[0], -1, block_bytes)


def _half(blocks: Bytes, offset: int) -> Floats:
    """The half-precision constant at byte ``offset`` of every block, [rows, blocks, 1]."""
    pair = np.ascontiguousarray(blocks[:, :, offset : offset + 2])
    return pair.view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Low nibbles are a block's first 16 values, high nibbles its last 16."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=2)


def decode_q4_0(raw: Bytes) -> Grouped:
    """value = d * (code - 8)"""
    blocks = _blocks(raw, 18)
    scale = _half(blocks, 0)
    return Grouped(_nibbles(blocks[:, :, 2:]), scale, np.full_like(scale, 8.0), bits=4)


def decode_q4_1(raw: Bytes) -> Grouped:
    """value = d * code + m, which is (code - zero) * d with the fractional zero = -m / d"""
    blocks = _blocks(raw, 20)
    scale, minimum = _half(blocks, 0), _half(blocks, 2)
    codes = _nibbles(blocks[:, :, 4:])
    # A constant block has d = 0: its value is m, whatever the codes say.
    constant = scale == 0
    codes = np.where(constant, np.uint8(1), codes)
    zero = np.where(constant, np.float32(0), -minimum / np.where(constant, np.float32(1), scale))
    return Grouped(codes, np.where(constant, minimum, scale), zero.astype(np.float32), bits=4)


def decode_q8_0(raw: Bytes) -> Grouped:
    """value = d * code"""
    blocks = _blocks(raw, 34)
    return Grouped(np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8), _half(blocks, 0), None, bits=8)


DECODERS: dict[str, Callable[[Bytes], Grouped]] = {"Q4_0": decode_q4_0, "Q4_1": decode_q4_1, "Q8_0": decode_q8_0}
