"""One pass of the simulated model: read every row's history through its block table, then write the new tokens' cells.

Both halves work on all rows at once. Reading costs O(blocks in the tables), writing O(new tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engines.contract import BlockCopy
from engines.simulated.hashing import MASK, Words, cells, contribution, contributions
from engines.simulated.memory import BlockMemory, Ids
from engines.simulated.staging import StagedStep

_ZERO = np.uint64(0)


@dataclass(frozen=True, slots=True)
class Readback:
    """What the blocks say about each row's past. All arrays are [R]."""

    borders: Words
    """State before the block that the row's first new token falls into."""
    origins: Words
    """That block's origin: as stored where the block is partly filled, else the border."""
    sums: Words
    """Sum of that block's cells so far; 0 where it is new."""
    states: Words
    """State of the whole past."""


def read_back(staged: StagedStep, table: Ids, memory: BlockMemory) -> Readback:
    """``table`` is the staged table with the plan's copies seen through."""
    size = memory.block_size
    entry_rows, indices = staged.entry_rows, staged.entry_indices
    full_counts, partial = staged.past // size, staged.past % size
    words = memory.read_full(table, indices)
    words[indices >= full_counts[entry_rows]] = 0
    borders = _sum_by_row(words, staged.table_starts)
    current = table[staged.table_starts[:-1] + full_counts]
    begun = partial > 0
    sums = np.where(begun, memory.sums[current, partial - 1], _ZERO)
    origins = np.where(begun, memory.origins[current], borders)
    tail = np.where(begun, contributions(sums, origins, full_counts), _ZERO)
    return Readback(borders=borders, origins=origins, sums=sums, states=borders + tail)


def through_copies(table: Ids, copies: Sequence[BlockCopy]) -> Ids:
    """Where the contents of each entry's block lie before ``copies`` are done: its source, if it is a target."""
    if not copies:
        return table
    holds: dict[int, int] = {}
    for copy in copies:
        holds[copy.target] = holds.get(copy.source, copy.source)
    return np.array([holds.get(block, block) for block in table.tolist()], dtype=np.int64)


def _sum_by_row(words: Words, starts: Ids) -> Words:
    running = np.zeros(len(words) + 1, dtype=np.uint64)
    words.cumsum(dtype=np.uint64, out=running[1:])
    sums: Words = running[starts[1:]] - running[starts[:-1]]
    return sums


def write_new(staged: StagedStep, read: Readback, memory: BlockMemory) -> Words:
    """Write the cells of the new tokens. Returns the state after each of them, [T]."""
    size, new = memory.block_size, staged.new
    token_rows = np.arange(len(new)).repeat(new)
    positions = np.arange(len(staged.tokens)) + (staged.past - staged.token_starts[:-1])[token_rows]
    indices, slots = positions // size, positions % size
    blocks = staged.table[staged.table_starts[token_rows] + indices]

    # A segment is the run of one row's new tokens that falls into one block.
    starts = slots == 0
    starts[staged.token_starts[:-1]] = True
    firsts = starts.nonzero()[0]
    segment_of = starts.cumsum() - 1
    segment_rows = token_rows[firsts]
    leading = np.zeros(len(firsts), dtype=np.bool_)
    leading[segment_of[staged.token_starts[:-1]]] = True

    own = cells(staged.tokens, positions)
    words = own.cumsum(dtype=np.uint64)
    before = words[firsts] - own[firsts]
    carry = np.where(leading, read.sums[segment_rows], _ZERO)
    sums = words + (carry - before)[segment_of]

    lasts = np.empty_like(firsts)
    lasts[:-1] = firsts[1:] - 1
    lasts[-1] = len(positions) - 1
    borders, origins = _chain(segment_rows, leading, sums[lasts], indices[firsts], read)
    memory.write(blocks, slots, staged.tokens, positions, sums)
    opens = slots[firsts] == 0
    memory.origins[blocks[firsts[opens]]] = origins[opens]
    states: Words = borders[segment_of] + contributions(sums, origins[segment_of], indices)
    return states


def _chain(
    rows: Ids, leading: np.ndarray[tuple[int], np.dtype[np.bool_]], sums: Words, indices: Ids, read: Readback
) -> tuple[Words, Words]:
    """Border and origin of every segment: a row's first from its past, each further one from the segment before it."""
    borders, origins = read.borders[rows], read.origins[rows]
    if leading.all():
        return borders, origins
    border_list, origin_list = borders.tolist(), origins.tolist()
    sum_list, index_list = sums.tolist(), indices.tolist()
    for segment in np.flatnonzero(~leading).tolist():
        previous = segment - 1
        added = contribution(sum_list[previous], origin_list[previous], index_list[previous])
        border_list[segment] = origin_list[segment] = (border_list[previous] + added) & MASK
    return np.array(border_list, dtype=np.uint64), np.array(origin_list, dtype=np.uint64)
