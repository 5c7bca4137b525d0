"""One pass of the simulated model: read every row's history through its block table, then write the new tokens' cells.

Reading costs O(blocks in the tables), writing O(new tokens). Twice the same: a step of many tokens is worked on with arrays, all rows at
once, a step of few with integers, where an operation on arrays would cost more than all of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engines.contract import BlockCopy, TokenArray
from engines.simulated.hashing import MASK, Words, cell, cells, contribution, contributions
from engines.simulated.memory import BlockMemory, Ids
from engines.simulated.staging import StagedStep

_ZERO = np.uint64(0)


@dataclass(frozen=True, slots=True)
class Readback:
    """What the blocks say about each row's past. All lists are [R], of 64-bit words."""

    borders: list[int]
    """State before the block that the row's first new token falls into."""
    origins: list[int]
    """That block's origin: as stored where the block is partly filled, else the border."""
    sums: list[int]
    """Sum of that block's cells so far; 0 where it is new."""
    states: list[int]
    """State of the whole past."""


def through_copies(table: TokenArray, copies: Sequence[BlockCopy]) -> TokenArray:
    """Where the contents of each entry's block lie before ``copies`` are done: its source, if it is a target."""
    if not copies:
        return table
    holds: dict[int, int] = {}
    for copy in copies:
        holds[copy.target] = holds.get(copy.source, copy.source)
    return array("i", [holds.get(block, block) for block in table])


def read_back(staged: StagedStep, table: TokenArray, memory: BlockMemory) -> Readback:
    """``table`` is the staged table with the plan's copies seen through."""
    if not staged.few:
        return _read_arrays(staged, np.array(table, dtype=np.int64), memory)
    read = Readback([], [], [], [])
    for first, past in zip(staged.table_starts, staged.past, strict=False):
        _read_row(table[first:], past, memory, read)
    return read


def _read_row(table: TokenArray, past: int, memory: BlockMemory, read: Readback) -> None:
    """Appends one row's. ``table`` begins with the row's own."""
    size, sums, origins = memory.block_size, memory.sums, memory.origins
    full, partial = divmod(past, size)
    border = 0
    for index, block in enumerate(table[:full]):
        border += contribution(sums.item(block, size - 1), origins.item(block), index)
    border &= MASK
    origin, total, state = border, 0, border
    if partial:
        block = table[full]
        origin, total = origins.item(block), sums.item(block, partial - 1)
        state = (border + contribution(total, origin, full)) & MASK
    read.borders.append(border)
    read.origins.append(origin)
    read.sums.append(total)
    read.states.append(state)


def _read_arrays(staged: StagedStep, table: Ids, memory: BlockMemory) -> Readback:
    size, step = memory.block_size, staged.arrays
    entry_rows, indices = step.entry_rows, step.entry_indices
    full_counts, partial = step.past // size, step.past % size
    words = memory.read_full(table, indices)
    words[indices >= full_counts[entry_rows]] = 0
    borders = _sum_by_row(words, step.table_starts)
    current = table[step.table_starts[:-1] + full_counts]
    begun = partial > 0
    sums = np.where(begun, memory.sums[current, partial - 1], _ZERO)
    origins = np.where(begun, memory.origins[current], borders)
    tail = np.where(begun, contributions(sums, origins, full_counts), _ZERO)
    return Readback(borders.tolist(), origins.tolist(), sums.tolist(), (borders + tail).tolist())


def _sum_by_row(words: Words, starts: Ids) -> Words:
    running = np.zeros(len(words) + 1, dtype=np.uint64)
    words.cumsum(dtype=np.uint64, out=running[1:])
    sums: Words = running[starts[1:]] - running[starts[:-1]]
    return sums


def write_new(staged: StagedStep, read: Readback, memory: BlockMemory) -> list[int]:
    """Write the cells of the new tokens. Returns the state after each of them, [T]."""
    if not staged.few:
        return _write_arrays(staged, read, memory)
    states: list[int] = []
    for at in range(len(staged.rows)):
        states += _write_row(staged, at, read, memory)
    return states


def _write_row(staged: StagedStep, at: int, read: Readback, memory: BlockMemory) -> list[int]:
    """Writes one row's cells; returns its states."""
    size, past = memory.block_size, staged.past[at]
    states: list[int] = []
    table = staged.table[staged.table_starts[at] : staged.table_starts[at + 1]]
    border, origin, total = read.borders[at], read.origins[at], read.sums[at]
    for position, token in enumerate(staged.tokens_of(at), past):
        index, slot = divmod(position, size)
        block = table[index]
        if slot == 0:
            if position > past:
                # The state after the last token of the block before is that before this one.
                border = origin = states[-1]
            total = 0
            memory.origins[block] = origin
        total = (total + cell(token, position)) & MASK
        memory.tokens[block, slot] = token
        memory.positions[block, slot] = position
        memory.sums[block, slot] = total
        states.append((border + contribution(total, origin, index)) & MASK)
    return states


def _write_arrays(staged: StagedStep, read: Readback, memory: BlockMemory) -> list[int]:
    size, step = memory.block_size, staged.arrays
    new = step.new
    token_rows = np.arange(len(new)).repeat(new)
    positions = np.arange(len(step.tokens)) + (step.past - step.token_starts[:-1])[token_rows]
    indices, slots = positions // size, positions % size
    blocks = step.table[step.table_starts[token_rows] + indices]

    # A segment is the run of one row's new tokens that falls into one block.
    starts = slots == 0
    starts[step.token_starts[:-1]] = True
    firsts = starts.nonzero()[0]
    segment_of = starts.cumsum() - 1
    segment_rows = token_rows[firsts]
    leading = np.zeros(len(firsts), dtype=np.bool_)
    leading[segment_of[step.token_starts[:-1]]] = True

    own = cells(step.tokens, positions)
    words = own.cumsum(dtype=np.uint64)
    before = words[firsts] - own[firsts]
    carry = np.where(leading, _words(read.sums)[segment_rows], _ZERO)
    sums = words + (carry - before)[segment_of]

    lasts = np.empty_like(firsts)
    lasts[:-1] = firsts[1:] - 1
    lasts[-1] = len(positions) - 1
    borders, origins = _chain(segment_rows, leading, sums[lasts], indices[firsts], read)
    memory.write(blocks, slots, step.tokens, positions, sums)
    opens = slots[firsts] == 0
    memory.origins[blocks[firsts[opens]]] = origins[opens]
    states: list[int] = (borders[segment_of] + contributions(sums, origins[segment_of], indices)).tolist()
    return states


def _words(words: list[int]) -> Words:
    return np.array(words, dtype=np.uint64)


def _chain(
    rows: Ids, leading: np.ndarray[tuple[int], np.dtype[np.bool_]], sums: Words, indices: Ids, read: Readback
) -> tuple[Words, Words]:
    """Border and origin of every segment: a row's first from its past, each further one from the segment before it."""
    borders, origins = _words(read.borders)[rows], _words(read.origins)[rows]
    if leading.all():
        return borders, origins
    border_list, origin_list = borders.tolist(), origins.tolist()
    sum_list, index_list = sums.tolist(), indices.tolist()
    for segment in np.flatnonzero(~leading).tolist():
        previous = segment - 1
        added = contribution(sum_list[previous], origin_list[previous], index_list[previous])
        border_list[segment] = origin_list[segment] = (border_list[previous] + added) & MASK
    return _words(border_list), _words(origin_list)
