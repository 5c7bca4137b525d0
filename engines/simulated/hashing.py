"""The arithmetic of the simulated model: 64-bit mixing, once for Python integers and once for NumPy arrays.

A *cell* is what one token leaves at one position; a *contribution* is what one block adds to the state of a history.
Both mixes are the finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Words: TypeAlias = NDArray[np.uint64]

MASK = (1 << 64) - 1
_MULTIPLY_1 = 0xBF58476D1CE4E5B9
_MULTIPLY_2 = 0x94D049BB133111EB
_TOKEN = 0x9E3779B97F4A7C15
_POSITION = 0xD1B54A32D192ED03
_ORIGIN = 0xA0761D6478BD642F
_INDEX = 0xE7037ED1A0B428DB
# The same as NumPy's words, made once: most arrays here are short, and a scalar costs as much as an operation on one.
_MULTIPLY_1_WORD, _MULTIPLY_2_WORD = np.uint64(_MULTIPLY_1), np.uint64(_MULTIPLY_2)
_TOKEN_WORD, _POSITION_WORD = np.uint64(_TOKEN), np.uint64(_POSITION)
_ORIGIN_WORD, _INDEX_WORD = np.uint64(_ORIGIN), np.uint64(_INDEX)
_1, _27, _30, _31 = np.uint64(1), np.uint64(27), np.uint64(30), np.uint64(31)


def mix(word: int) -> int:
    """A bijection of 64-bit words in which every input bit reaches every output bit."""
    word &= MASK
    word = ((word ^ (word >> 30)) * _MULTIPLY_1) & MASK
    word = ((word ^ (word >> 27)) * _MULTIPLY_2) & MASK
    return word ^ (word >> 31)


def mix_all(words: Words) -> Words:
    """:func:`mix` of every element."""
    mixed = words >> _30
    mixed ^= words
    mixed *= _MULTIPLY_1_WORD
    mixed ^= mixed >> _27
    mixed *= _MULTIPLY_2_WORD
    mixed ^= mixed >> _31
    return mixed


def combine(*words: int) -> int:
    """One word that depends on all of them and on their order."""
    state = len(words)
    for word in words:
        state = mix(state * _TOKEN + (word & MASK) + _POSITION)
    return state


@lru_cache(maxsize=1 << 15)
def cell(token: int, position: int) -> int:
    """Remembered: whoever reads a history back asks for the same cells step after step."""
    return mix((token + 1) * _TOKEN + (position + 1) * _POSITION)


def cells(tokens: NDArray[np.integer], positions: NDArray[np.integer]) -> Words:
    """:func:`cell` of every pair."""
    return mix_all((tokens.astype(np.uint64) + _1) * _TOKEN_WORD + (positions.astype(np.uint64) + _1) * _POSITION_WORD)


def contribution(cell_sum: int, origin: int, index: int) -> int:
    """What block number ``index`` of a history adds: its cells' sum, bound to the state that stood before the block."""
    return mix(cell_sum + origin * _ORIGIN + (index + 1) * _INDEX)


def contributions(cell_sums: Words, origins: Words, indices: NDArray[np.integer]) -> Words:
    """:func:`contribution` of every triple."""
    return mix_all(cell_sums + origins * _ORIGIN_WORD + (indices.astype(np.uint64) + _1) * _INDEX_WORD)
