"""A step plan, checked against the contract and flattened. Nothing here changes any state."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engines.contract import PlanError, Row, RunnerLimits, Sample, Score, StepPlan, TokenArray
from engines.simulated.cost import StepShape

Ids = NDArray[np.int64]

FEW = 64
"""Up to how many tokens and table entries a step is worked on with integers; on more, NumPy is faster. Both say the same."""


class StepArrays:
    """A staged step as NumPy's arrays. R rows, T new tokens, E table entries in use."""

    __slots__ = ("entry_indices", "entry_rows", "new", "past", "table", "table_starts", "token_starts", "tokens")

    def __init__(self, staged: StagedStep) -> None:
        self.tokens: Ids = np.array(staged.tokens, dtype=np.int64)
        """[T]"""
        self.token_starts: Ids = np.array(staged.token_starts, dtype=np.int64)
        """[R + 1] into ``tokens``."""
        self.past: Ids = np.array(staged.past, dtype=np.int64)
        """[R]"""
        self.table: Ids = np.array(staged.table, dtype=np.int64)
        """[E] block ids, row after row."""
        self.table_starts: Ids = np.array(staged.table_starts, dtype=np.int64)
        """[R + 1] into ``table``."""
        self.new: Ids = self.token_starts[1:] - self.token_starts[:-1]
        """[R] new tokens a row."""
        entries = self.table_starts[1:] - self.table_starts[:-1]
        self.entry_rows: Ids = np.arange(len(self.past)).repeat(entries)
        """[E] the row of each entry."""
        self.entry_indices: Ids = np.arange(len(self.table)) - self.table_starts[:-1].repeat(entries)
        """[E] each entry's index within its own table."""


@dataclass(frozen=True)
class StagedStep:
    """The rows of a plan side by side. R rows, T new tokens, E table entries in use."""

    rows: Sequence[Row]
    tokens: TokenArray
    """[T]"""
    token_starts: list[int]
    """[R + 1] into ``tokens``."""
    past: list[int]
    """[R]"""
    table: TokenArray
    """[E] block ids, row after row."""
    table_starts: list[int]
    """[R + 1] into ``table``."""

    @cached_property
    def few(self) -> bool:
        """Whether it is worked on with integers."""
        return len(self.tokens) + len(self.table) <= FEW

    @cached_property
    def arrays(self) -> StepArrays:
        return StepArrays(self)

    def tokens_of(self, at: int) -> TokenArray:
        """New tokens of row number ``at``."""
        return self.tokens[self.token_starts[at] : self.token_starts[at + 1]]

    def written(self, block_size: int) -> Iterator[TokenArray]:
        """Of each row, the blocks that it writes."""
        for at, past in enumerate(self.past):
            yield self.table[self.table_starts[at] + past // block_size : self.table_starts[at + 1]]

    def shape(self) -> StepShape:
        # As a loop: up to some fifty rows that is faster than a dozen operations on arrays.
        chunks = decodes = context = 0
        attention = 0.0
        for at, past in enumerate(self.past):
            new = self.token_starts[at + 1] - self.token_starts[at]
            if new == 1 and past > 0:
                decodes += 1
                context += past + 1
            else:
                chunks += new
                attention += new * (past + new / 2)
        return StepShape(new=chunks, decodes=decodes, decode_context=context, attention=attention)


def stage(plan: StepPlan, limits: RunnerLimits, carried: Sequence[int | None]) -> StagedStep:
    """Flatten ``plan``. ``carried`` holds, per row, the token that stands for ``tokens=None``. Raises PlanError."""
    if len(plan.rows) > limits.max_rows:
        raise PlanError(f"rows: at most {limits.max_rows} in one step, got {len(plan.rows)}")
    tokens, table = array("i"), array("i")
    token_starts, table_starts = [0], [0]
    for row, token in zip(plan.rows, carried, strict=True):
        if row.tokens is not None:
            tokens.extend(row.tokens)
        elif token is not None:
            tokens.append(token)
        new = len(tokens) - token_starts[-1]
        need = _check_row(row, new, limits)
        table.extend(row.blocks[0][:need])
        token_starts.append(len(tokens))
        table_starts.append(len(table))
    if len(tokens) > limits.max_step_tokens:
        raise PlanError(f"tokens: at most {limits.max_step_tokens} new ones in one step, got {len(tokens)}")
    staged = StagedStep(plan.rows, tokens, token_starts, [row.past for row in plan.rows], table, table_starts)
    _check_range(staged.tokens, staged.token_starts, limits.vocab_size, staged, "token")
    _check_range(staged.table, staged.table_starts, limits.block_count, staged, "block")
    _check_copies(plan, limits)
    return staged


def _check_row(row: Row, new: int, limits: RunnerLimits) -> int:
    """How many table entries the row uses."""
    who = f"sequence {row.sequence}"
    if new < 1:
        raise PlanError(f"{who}: a row needs at least one new token")
    if row.past < 0:
        raise PlanError(f"{who}: past must not be negative, got {row.past}")
    if row.past + new > limits.max_context:
        raise PlanError(f"{who}: context is at most {limits.max_context} tokens, got {row.past} + {new}")
    if len(row.blocks) != len(limits.kv_groups):
        raise PlanError(f"{who}: one block table per KV group ({len(limits.kv_groups)}), got {len(row.blocks)}")
    if row.adapter != 0:
        raise PlanError(f"{who}: adapters are not offered, got slot {row.adapter}")
    need = -(-(row.past + new) // limits.block_size)
    if len(row.blocks[0]) < need:
        raise PlanError(f"{who}: {row.past} + {new} tokens need {need} blocks, its table has {len(row.blocks[0])}")
    _check_want(row, new, limits)
    return need


def _check_want(row: Row, new: int, limits: RunnerLimits) -> None:
    who = f"sequence {row.sequence}"
    match row.want:
        case Sample(count=count):
            if not 1 <= count <= new:
                raise PlanError(f"{who}: sample count must be 1 .. {new} (the row's new tokens), got {count}")
        case Score(targets=targets, top=top):
            if not 1 <= len(targets) <= new:
                raise PlanError(f"{who}: targets must be 1 .. {new} (the row's new tokens), got {len(targets)}")
            if min(targets) < 0 or max(targets) >= limits.vocab_size:
                raise PlanError(
                    f"{who}: targets must be 0 .. {limits.vocab_size - 1}, got {min(targets)} .. {max(targets)}"
                )
            if not 0 <= top <= limits.vocab_size:
                raise PlanError(f"{who}: top must be 0 .. {limits.vocab_size}, got {top}")


def _check_range(values: TokenArray, starts: list[int], bound: int, staged: StagedStep, what: str) -> None:
    if not values:
        return
    if staged.few:
        fits = min(values) >= 0 and max(values) < bound
    else:
        # One comparison for both ends: as unsigned, what is negative is greater than any bound.
        fits = int(np.frombuffer(values, dtype=np.uint32).max()) < bound
    if not fits:
        at, wrong = next((at, value) for at, value in enumerate(values) if not 0 <= value < bound)
        row = staged.rows[bisect_right(starts, at) - 1]
        raise PlanError(f"sequence {row.sequence}: {what} ids must be 0 .. {bound - 1}, got {wrong}")


def _check_copies(plan: StepPlan, limits: RunnerLimits) -> None:
    for copy in plan.copies:
        if copy.group != 0:
            raise PlanError(f"copies: group must be 0, got {copy.group}")
        for block in (copy.source, copy.target):
            if not 0 <= block < limits.block_count:
                raise PlanError(f"copies: block ids must be 0 .. {limits.block_count - 1}, got {block}")


def check_writers(staged: StagedStep, block_size: int, owners: NDArray[np.int32]) -> None:
    """No block written by two rows, none read by one row and written by another, none twice in what a row writes.

    ``owners`` is scratch, one entry per block, all -1, and is given back so.
    """
    if staged.few and _all_differ(staged, block_size):
        return
    arrays = staged.arrays
    entry_rows = arrays.entry_rows
    writes = arrays.entry_indices >= (arrays.past // block_size)[entry_rows]
    written, writers = arrays.table[writes], entry_rows[writes]
    owners[written] = writers
    try:
        clash = (owners[written] != writers).nonzero()[0]
        if len(clash):
            block = written[clash[0]]
            raise PlanError(f"block {block} is written by {_names(staged, writers[clash[0]], owners[block])}")
        if len(set(written.tolist())) < len(written):
            raise PlanError("a sequence's table names a block twice among those to be written")
        read, readers = arrays.table[~writes], entry_rows[~writes]
        clash = (owners[read] >= 0).nonzero()[0]
        if len(clash):
            block = read[clash[0]]
            raise PlanError(f"block {block} is read and written by {_names(staged, readers[clash[0]], owners[block])}")
    finally:
        owners[written] = -1


def _all_differ(staged: StagedStep, block_size: int) -> bool:
    """Whether every block that is written is named once in the whole step. Of few entries a scan for each is the fastest."""
    return all(staged.table.count(block) == 1 for blocks in staged.written(block_size) for block in blocks)


def _names(staged: StagedStep, first: int, second: int) -> str:
    return f"sequences {staged.rows[first].sequence} and {staged.rows[second].sequence} in one step"
