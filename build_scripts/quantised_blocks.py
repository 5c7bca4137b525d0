"""GGML's block formats as groups of small integers, number for number.

A block holds 32 values of one row: half-precision constants first, then the codes. The K formats hold 256 values in
sub-blocks of 32 or 16, whose constants are themselves small integers times the block's half-precision ones. Layouts are
those of ggml-common.h (block_q4_0, block_q4_1, block_q8_0, block_q4_K, block_q5_K, block_q6_K). Input is the raw bytes of a
matrix, [rows, bytes per row].
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from build_scripts.weights import Codes, Floats, Grouped

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
    return _affine(_nibbles(blocks[:, :, 4:]), scale, minimum, bits=4)


def decode_q8_0(raw: Bytes) -> Grouped:
    """value = d * code"""
    blocks = _blocks(raw, 34)
    return Grouped(np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8), _half(blocks, 0), None, bits=8)


def decode_q4_k(raw: Bytes) -> Grouped:
    """value = d * scale * code - dmin * minimum, in sub-blocks of 32"""
    blocks = _blocks(raw, 144)
    pairs = blocks[:, :, 16:].reshape(*blocks.shape[:2], 4, 1, 32)
    codes = np.concatenate([pairs & 0x0F, pairs >> 4], axis=3)
    return _with_minima(blocks, codes.reshape(blocks.shape[0], -1, 32), bits=4)


def decode_q5_k(raw: Bytes) -> Grouped:
    """As Q4_K with a fifth bit; bit j of the high bytes belongs to sub-block j. Codes of 0..31 are held in eight bits."""
    blocks = _blocks(raw, 176)
    pairs = blocks[:, :, 48:].reshape(*blocks.shape[:2], 4, 1, 32)
    low = np.concatenate([pairs & 0x0F, pairs >> 4], axis=3).reshape(*blocks.shape[:2], 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    high = (blocks[:, :, None, 16:48] >> shifts) & 1
    codes = (low | (high << 4)).reshape(blocks.shape[0], -1, 32)
    return _with_minima(blocks, codes.astype(np.int8), bits=8)


def decode_q6_k(raw: Bytes) -> Grouped:
    """value = d * scale * (code - 32), in sub-blocks of 16"""
    blocks = _blocks(raw, 210)
    rows, count = blocks.shape[:2]
    low = blocks[:, :, :128].reshape(rows, count, 2, 2, 32)
    high = blocks[:, :, 128:192].reshape(rows, count, 2, 1, 32)
    quarters = [
        (low[:, :, :, 0:1] & 0x0F) | ((high & 3) << 4),
        (low[:, :, :, 1:2] & 0x0F) | (((high >> 2) & 3) << 4),
        (low[:, :, :, 0:1] >> 4) | (((high >> 4) & 3) << 4),
        (low[:, :, :, 1:2] >> 4) | (((high >> 6) & 3) << 4),
    ]
    codes = np.concatenate(quarters, axis=3).reshape(rows, -1, 16).astype(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[:, :, 192:208]).view(np.int8).astype(np.float32)
    scale = _half(blocks, 208) * scales
    return Grouped(codes, scale.reshape(rows, -1, 1), None, bits=8)


def _with_minima(blocks: Bytes, codes: Codes, bits: int) -> Grouped:
    """Codes with the twelve packed bytes of six-bit scales and minima that Q4_K and Q5_K share."""
    packed = blocks[:, :, 4:16].astype(np.uint8)
    first, second, third = packed[:, :, :4], packed[:, :, 4:8], packed[:, :, 8:]
    scales = np.concatenate([first & 63, (third & 0x0F) | ((first >> 6) << 4)], axis=2)
    minima = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=2)
    scale = (_half(blocks, 0) * scales.astype(np.float32)).reshape(blocks.shape[0], -1, 1)
    minimum = (_half(blocks, 2) * minima.astype(np.float32)).reshape(blocks.shape[0], -1, 1)
    return _affine(codes, scale, -minimum, bits)


def _affine(codes: Codes, scale: Floats, offset: Floats, bits: int) -> Grouped:
    """value = scale * code + offset, as (code - zero) * scale with a fractional zero."""
    # A group whose scale is 0 is constant: its value is the offset, whatever the codes say.
    constant = scale == 0
    codes = np.where(constant, codes.dtype.type(1), codes)
    zero = np.where(constant, np.float32(0), -offset / np.where(constant, np.float32(1), scale))
    return Grouped(codes, np.where(constant, offset, scale), zero.astype(np.float32), bits=bits)


DECODERS: dict[str, Callable[[Bytes], Grouped]] = {
    "Q4_0": decode_q4_0,
    "Q4_1": decode_q4_1,
    "Q8_0": decode_q8_0,
    "Q4_K": decode_q4_k,
    "Q5_K": decode_q5_k,
    "Q6_K": decode_q6_k,
}
