"""The strict reader: does every block hold what the sequence's own tokens say it must?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engines.contract import PlanError, Row, TokenArray
from engines.simulated.attention import Readback
from engines.simulated.hashing import MASK, cell
from engines.simulated.history import History
from engines.simulated.memory import BlockMemory, Ids
from engines.simulated.sequences import OpenSequence
from engines.simulated.staging import StagedStep


def check_histories(
    staged: StagedStep, table: TokenArray, read: Readback, memory: BlockMemory, sequences: Mapping[int, OpenSequence]
) -> None:
    """``table`` is the staged table with the plan's copies seen through. Raises PlanError naming the block at fault."""
    states, starts = read.states, staged.table_starts
    for at, row in enumerate(staged.rows):
        sequence = sequences[row.sequence]
        if row.past < len(sequence.spec.prompt):
            sequence.check_tokens(row, staged.tokens_of(at))
        sequence.learn_prompt(row.past)
        blocks = table[starts[at] : starts[at + 1]]
        if len(sequence.history) < row.past:
            _adopt(sequence, row, blocks, states[at], memory)
        elif sequence.history.state_at(row.past) != states[at]:
            raise PlanError(explain(row, blocks, sequence.history, memory))


def _adopt(sequence: OpenSequence, row: Row, blocks: TokenArray, state: int, memory: BlockMemory) -> None:
    """Past beyond all that the runner was told (generated before, under another id): believe the cells if they are coherent."""
    cells = memory.tokens[np.array(blocks)].ravel()[: row.past].tolist()
    known = len(sequence.history)
    grown = History(memory.block_size, cells)
    if grown.state != state or cells[:known] != sequence.history.tokens.tolist():
        raise PlanError(explain(row, blocks, grown, memory))
    sequence.history.extend(cells[known:])


def explain(row: Row, blocks: TokenArray, history: History, memory: BlockMemory) -> str:
    """Which block of the row's past is not what it must be, and what it holds."""
    size = memory.block_size
    tokens = np.array(history.tokens[: row.past], dtype=np.int64)
    for index, block in enumerate(blocks[: -(-row.past // size)]):
        first, last = index * size, min(row.past, (index + 1) * size)
        where = f"sequence {row.sequence}: block {block} at index {index} of its table"
        positions = memory.positions[block, : last - first]
        if (positions < 0).any():
            return f"{where} is not written up to position {last - 1}"
        if (positions != np.arange(first, last)).any():
            return f"{where} holds positions {positions.min()} .. {positions.max()}, not {first} .. {last - 1}"
        if (memory.tokens[block, : last - first] != tokens[first:last]).any():
            return f"{where} holds other tokens than the sequence has at {first} .. {last - 1}"
        if int(memory.origins[block]) != history.borders[index]:
            return f"{where} holds the right tokens after a different beginning"
        if int(memory.sums[block, last - first - 1]) != history.sum_of(index, last):
            return f"{where} holds a stale running sum at position {last - 1}"
    return f"sequence {row.sequence}: the past of {row.past} tokens is not what its blocks hold"


def check_cells(staged: StagedStep, table: TokenArray, memory: BlockMemory) -> None:
    """Paranoid: recompute every running sum that the step reads from the cells themselves, O(context). Raises PlanError."""
    if not staged.few:
        _check_arrays(staged, np.array(table, dtype=np.int64), memory)
        return
    size = memory.block_size
    for first, row in zip(staged.table_starts, staged.rows, strict=False):
        for index in range(-(-row.past // size)):
            block, used = table[first + index], min(row.past - index * size, size)
            tokens, positions = memory.tokens[block].tolist(), memory.positions[block].tolist()
            total = sum(map(cell, tokens[:used], positions[:used])) & MASK
            if total != memory.sums.item(block, used - 1):
                raise _stale(row, block)


def _check_arrays(staged: StagedStep, table: Ids, memory: BlockMemory) -> None:
    size, step = memory.block_size, staged.arrays
    entry_rows, indices = step.entry_rows, step.entry_indices
    used = np.minimum(step.past[entry_rows] - indices * size, size)
    reads = used > 0
    blocks, lasts = table[reads], used[reads] - 1
    stale = memory.recompute_sums(blocks)[np.arange(len(blocks)), lasts] != memory.sums[blocks, lasts]
    if stale.any():
        at = int(np.argmax(stale))
        raise _stale(staged.rows[int(entry_rows[reads][at])], int(blocks[at]))


def _stale(row: Row, block: int) -> PlanError:
    return PlanError(f"sequence {row.sequence}: block {block} holds cells that do not add up")
