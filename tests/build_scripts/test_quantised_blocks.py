"""Every block format decodes to the numbers that the gguf library gives for the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from build_scripts.quantised_blocks import DECODERS

HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where each format keeps half-precision constants: random bytes there would be infinite or NaN."""


def random_blocks(kind: str, rows: int, blocks: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    generator = np.random.default_rng(7)
    size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    raw = generator.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for offset in HALVES[kind]:
        halves = generator.normal(0, 0.02, (rows, blocks)).astype(np.float16)
        raw[:, :, offset : offset + 2] = halves.view(np.uint8).reshape(rows, blocks, 2)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("kind", DECODERS)
def test_decoded_groups_are_the_librarys_numbers(kind: str) -> None:
    raw = random_blocks(kind, 6, 3)
    expected = dequantize(raw, GGMLQuantizationType[kind])
    weight = DECODERS[kind](raw)
    assert weight.shape == expected.shape
    # A fractional zero point costs one rounding more than the format's own formula.
    assert np.abs(weight.to_float32() - expected).max() <= 4e-7 * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q5_K"])
def test_a_constant_group_keeps_its_value(kind: str) -> None:
    """A scale of zero leaves only the minimum; dividing by it would give NaN."""
    raw = random_blocks(kind, 2, 1)
    raw[:, 0:2] = 0
    expected = dequantize(raw, GGMLQuantizationType[kind])
    found = DECODERS[kind](raw).to_float32()
    assert np.isfinite(found).all()
    assert np.array_equal(found, expected)
