"""What the simulated model says: from the state of a history to its next token, or to a whole row of logits.

The likeliest token of a state is known without the row, so that greedy steps cost O(1) a sequence whatever the vocabulary; the row
agrees with it. The rows look like a language model's: few tokens carry most of the mass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engines.simulated.hashing import MASK, Words, mix, mix_all

_SPREAD = 1.5
"""Other tokens' logits are exponentially distributed with this mean: e**logit then has a Pareto tail, so a few dominate."""
_FALL = np.float32(-_SPREAD)
_KEPT_BITS, _HALF, _SCALE = np.uint64(40), np.float32(0.5), np.float32(2.0**-24)
"""From a word's upper 24 bits to a number within (0, 1)."""
_LEAD = 0.5
"""How far the likeliest token's logit lies above the greatest possible other one."""
_BULK = 16
"""From how many states on NumPy is faster than integers."""
_NEVER = -30.0
"""Logit of ids that are never said of themselves: ends off turn and what lies outside the alphabet."""


class Language:
    """A deterministic distribution over next tokens for every 64-bit state. Immutable; any thread."""

    def __init__(
        self,
        vocab_size: int,
        *,
        end_ids: Sequence[int] = (),
        end_rate: float = 0.0,
        alphabet: Sequence[int] | None = None,
        seed: int = 0,
    ) -> None:
        """``end_rate`` of the states have one of ``end_ids`` as their likeliest token; the rest one of ``alphabet``.

        ``alphabet`` may name an id several times to make it commoner; None = every id that ends nothing.
        """
        if not 0.0 <= end_rate <= 1.0:
            raise ValueError(f"end_rate: must be 0 .. 1, got {end_rate}")
        if end_rate and not end_ids:
            raise ValueError(f"end_ids: an end rate of {end_rate} needs at least one")
        ends = set(end_ids)
        ordinary = [t for t in (range(vocab_size) if alphabet is None else alphabet) if t not in ends]
        outside = [t for t in (*ordinary, *ends) if not 0 <= t < vocab_size]
        if outside:
            raise ValueError(f"alphabet and end_ids: ids must be 0 .. {vocab_size - 1}, got {outside[0]}")
        if not ordinary:
            raise ValueError("alphabet: nothing is left to say beside the end ids")
        self.vocab_size = vocab_size
        self.end_ids = tuple(end_ids)
        self._ordinary = ordinary
        self._ordinary_array = np.array(ordinary, dtype=np.int64)
        self._end_array = np.array(end_ids or [0], dtype=np.int64)
        self._end_threshold = min(int(end_rate * 2.0**64), MASK)
        self._seed = mix(seed)
        self._ceiling = np.float32(_SPREAD * np.log(vocab_size))
        self._peak = np.float32(_SPREAD * np.log(vocab_size) + _LEAD)
        self._silent = np.ones(vocab_size, dtype=np.bool_)
        self._silent[ordinary] = False
        self._token_words = mix_all(np.arange(vocab_size, dtype=np.uint64) + np.uint64(self._seed))

    def likeliest(self, state: int) -> int:
        """The token with the greatest logit."""
        word = mix(state ^ self._seed)
        if mix(word + 1) < self._end_threshold:
            return self.end_ids[mix(word + 2) % len(self.end_ids)]
        return self._ordinary[word % len(self._ordinary)]

    def likeliest_of(self, states: Words) -> NDArray[np.int64]:
        """:meth:`likeliest` of every state."""
        if len(states) < _BULK:
            return np.array([self.likeliest(state) for state in states.tolist()], dtype=np.int64)
        words = mix_all(states ^ np.uint64(self._seed))
        tokens = self._ordinary_array[(words % np.uint64(len(self._ordinary))).astype(np.int64)]
        if self._end_threshold:
            ends = mix_all(words + np.uint64(1)) < np.uint64(self._end_threshold)
            picks = mix_all(words + np.uint64(2)) % np.uint64(len(self._end_array))
            tokens = np.where(ends, self._end_array[picks.astype(np.int64)], tokens)
        return tokens

    def logits(self, states: Words) -> NDArray[np.float32]:
        """One row per state, shape [states, vocab_size]."""
        rows = np.empty((len(states), self.vocab_size), dtype=np.float32)
        for at, word in enumerate(mix_all(states + np.uint64(self._seed))):
            bits = mix_all(self._token_words ^ word)
            bits >>= _KEPT_BITS
            row = rows[at]
            row[:] = bits
            row += _HALF
            row *= _SCALE
            np.log(row, out=row)
            row *= _FALL
            np.minimum(row, self._ceiling, out=row)
            row[self._silent] = _NEVER
        rows[np.arange(len(states)), self.likeliest_of(states)] = self._peak
        return rows
