"""The proof of a conversion: what the rank files compute against what the checkpoint computes, in float64.

Both sides hold the same stored numbers, those that the conversion's rounding left, so nothing but the order of sums may
differ and the bound is that of float64. A mistake in the split (halves swapped, a wrong key head, a bias dropped or added
twice, a norm misplaced) moves log-probabilities by whole numbers instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from build_scripts.casting import FloatType, cast
from build_scripts.decoder import Decoder
from build_scripts.reference import ranks, unsharded
from build_scripts.reference.arithmetic import Array
from build_scripts.trtllm.config import attention_windows
from build_scripts.trtllm.recipe import DenseSource
from build_scripts.weights import Dense, Floats, Weight

LIMIT = 1e-10
"""Difference of log-probabilities in float64 that only the order of sums can explain, at any size of model."""


@dataclass(frozen=True)
class ShardingProof:
    tokens: int
    max_difference: float

    @property
    def holds(self) -> bool:
        return self.max_difference <= LIMIT


class AsConverted:
    """A checkpoint's tensors as a conversion rounds them: each cast to the type, norms with their shift added before."""

    def __init__(self, source: DenseSource, decoder: Decoder, dtype: FloatType) -> None:
        self._source = source
        self._dtype = dtype
        self._shift = decoder.norm_shift
        self._shapes = decoder.tensors()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Weight:
        shift = self._shift if name.endswith("norm.weight") else 0.0
        return Dense(cast(self._source.read(name), self._dtype, name, shift=shift))

    def read_float32(self, name: str) -> Floats:
        return self.read(name).to_float32()


def unsharded_log_probabilities(
    decoder: Decoder, source: DenseSource, dtype: FloatType, tokens: Sequence[int]
) -> Array:
    whole_norms = dataclasses.replace(decoder, norm_shift=0.0)
    return unsharded.log_probabilities(whole_norms, AsConverted(source, decoder, dtype), tokens)


def prove_sharding(
    decoder: Decoder, source: DenseSource, dtype: FloatType, directory: Path, tokens: Sequence[int]
) -> ShardingProof:
    """Run both sides over ``tokens``. Costs one forward pass each, one tensor in memory at a time."""
    expected = unsharded_log_probabilities(decoder, source, dtype, tokens)
    found = ranks.log_probabilities(directory, tokens, windows=attention_windows(decoder))
    return ShardingProof(len(tokens), float(np.abs(found - expected).max()))


def probe_tokens(vocabulary: int, count: int = 24) -> list[int]:
    """Tokens spread over the vocabulary, its last one among them: padding starts behind it."""
    return [int(token) for token in np.linspace(0, vocabulary - 1, count).round()]
