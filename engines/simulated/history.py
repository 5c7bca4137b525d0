"""The state of a token history, as the simulated model defines it, without any KV block.

With blocks of B tokens, block ``i`` of a history holds the positions ``i * B .. i * B + B - 1``; then::

    border[0]     = 0
    border[i + 1] = border[i] + contribution(sum of block i's cells, border[i], i)
    state         = border[i] (+ contribution(sum of the cells so far in block i, border[i], i) if it is partly filled)

all modulo 2**64. ``border[i]`` inside block i's contribution makes a block's content depend on everything before it, as keys
and values of a real model do: equal tokens after a different prefix are a different block.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from engines.simulated.hashing import MASK, cell, cells, contribution

_BULK = 16
"""From how many tokens on NumPy is faster than integers."""


class History:
    """Grows in O(new tokens), rolls back in O(block size). Not thread-safe."""

    __slots__ = ("_block_size", "_borders", "_cell_sum", "tokens")

    def __init__(self, block_size: int, tokens: Sequence[int] = ()) -> None:
        self._block_size = block_size
        self._borders = [0]
        self._cell_sum = 0
        self.tokens = array("i")
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def state(self) -> int:
        """A 64-bit word that depends on every token and its position."""
        border = self._borders[-1]
        if len(self.tokens) % self._block_size == 0:
            return border
        return (border + contribution(self._cell_sum, border, len(self._borders) - 1)) & MASK

    def state_at(self, length: int) -> int:
        """State of the first ``length`` tokens; O(block size) where that is not all."""
        if length == len(self.tokens):
            return self.state
        index = length // self._block_size
        border = self._borders[index]
        if length % self._block_size == 0:
            return border
        return (border + contribution(self.sum_of(index, length), border, index)) & MASK

    def sum_of(self, index: int, length: int) -> int:
        """Sum of the cells of block ``index`` at positions below ``length``."""
        first = index * self._block_size
        last = min(length, first + self._block_size)
        return sum(cell(self.tokens[position], position) for position in range(first, last)) & MASK

    @property
    def borders(self) -> Sequence[int]:
        """State before each block: ``borders[i]`` stands for the first ``i`` full blocks. Do not change it."""
        return self._borders

    def append(self, token: int) -> None:
        self._cell_sum = (self._cell_sum + cell(token, len(self.tokens))) & MASK
        self.tokens.append(token)
        if len(self.tokens) % self._block_size == 0:
            self._close_block()

    def extend(self, tokens: Sequence[int]) -> None:
        if len(tokens) < _BULK:
            for token in tokens:
                self.append(token)
            return
        first = len(self.tokens)
        values = np.array(tokens, dtype=np.int64)
        words = cells(values, np.arange(first, first + len(values)))
        self.tokens.extend(tokens)
        cuts = np.arange(-(first % self._block_size), len(values), self._block_size).clip(min=0)
        for total in np.add.reduceat(words, cuts).tolist():
            self._cell_sum = (self._cell_sum + total) & MASK
            if len(self._borders) * self._block_size <= len(self.tokens):
                self._close_block()

    def truncate(self, length: int) -> None:
        """Forget everything from position ``length`` on."""
        if length >= len(self.tokens):
            return
        del self.tokens[length:]
        full = length // self._block_size
        del self._borders[full + 1 :]
        self._cell_sum = self.sum_of(full, length)

    def _close_block(self) -> None:
        border = self._borders[-1]
        self._borders.append((border + contribution(self._cell_sum, border, len(self._borders) - 1)) & MASK)
        self._cell_sum = 0
