"""The KV blocks of the simulated step runner: token ids in cells, and enough beside them to read a whole history back fast.

Per block the memory holds, for every slot, the token, its position and the running sum of the block's cells; and once the
block's *origin*, the state of the history before it. Reading a history back through a block table therefore costs O(blocks), and
any block that is not the one that belongs there changes the state that comes out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engines.contract import BlockCopy
from engines.simulated.hashing import Words, cells, contributions

Ids = NDArray[np.int64]

BYTES_PER_TOKEN = 24
"""Token 4, position 4, running sum 8, origin 8 (repeated for every slot in what read_blocks gives)."""

_CELL = np.dtype([("token", "<i4"), ("position", "<i4"), ("sum", "<u8"), ("origin", "<u8")])


class BlockMemory:
    """Block contents. Trusts its caller: ids have been checked. One thread."""

    def __init__(self, block_count: int, block_size: int, *, poison: bool, seed: int) -> None:
        """``poison``: blocks hold garbage until they are written, instead of zeros."""
        self.block_size = block_size
        shape = (block_count, block_size)
        self.tokens = np.zeros(shape, dtype=np.int32)
        self.positions = np.full(shape, -1, dtype=np.int32)
        self.sums = np.zeros(shape, dtype=np.uint64)
        self.origins = np.zeros(block_count, dtype=np.uint64)
        self._garbage = np.random.default_rng(seed)
        if poison:
            self.scramble(np.arange(block_count))

    def scramble(self, blocks: Ids) -> None:
        """Fill blocks with garbage, as a failed step or another owner would."""
        shape = (len(blocks), self.block_size)
        self.tokens[blocks] = self._garbage.integers(0, 1 << 31, shape, dtype=np.int32)
        self.positions[blocks] = -1
        self.sums[blocks] = self._garbage.integers(0, 1 << 64, shape, dtype=np.uint64)
        self.origins[blocks] = self._garbage.integers(0, 1 << 64, len(blocks), dtype=np.uint64)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            for field in (self.tokens, self.positions, self.sums, self.origins):
                field[copy.target] = field[copy.source]

    def read_full(self, blocks: Ids, indices: Ids) -> Words:
        """What each full block adds to its history, standing at ``indices`` of its table."""
        return contributions(self.sums[blocks, self.block_size - 1], self.origins[blocks], indices)

    def recompute_sums(self, blocks: Ids) -> Words:
        """The running sums from the cells themselves, shape [blocks, block_size]: what a paranoid reader compares with."""
        tokens = self.tokens[blocks]
        sums: Words = cells(tokens.ravel(), self.positions[blocks].ravel()).reshape(tokens.shape)
        return sums.cumsum(axis=1, dtype=np.uint64)

    def write(self, blocks: Ids, slots: Ids, tokens: Ids, positions: Ids, sums: Words) -> None:
        self.tokens[blocks, slots] = tokens
        self.positions[blocks, slots] = positions
        self.sums[blocks, slots] = sums

    def dump(self, block: int) -> bytes:
        record = np.empty(self.block_size, dtype=_CELL)
        record["token"] = self.tokens[block]
        record["position"] = self.positions[block]
        record["sum"] = self.sums[block]
        record["origin"] = self.origins[block]
        return record.tobytes()

    def restore(self, block: int, content: bytes) -> None:
        record = np.frombuffer(content, dtype=_CELL)
        self.tokens[block] = record["token"]
        self.positions[block] = record["position"]
        self.sums[block] = record["sum"]
        self.origins[block] = record["origin"][0]
