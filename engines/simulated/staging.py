"""A step plan, checked against the contract and flattened into arrays. Nothing here changes any state."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engines.contract import PlanError, Row, RunnerLimits, Sample, Score, StepPlan
from engines.simulated.cost import StepShape

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StagedStep:
    """The rows of a plan side by side. R rows, T new tokens, E table entries in use."""

    rows: Sequence[Row]
    tokens: Ids
    """[T]"""
    token_starts: Ids
    """[R + 1] into ``tokens``."""
    past: Ids
    """[R]"""
    table: Ids
    """[E] block ids, row after row."""
    table_starts: Ids
    """[R + 1] into ``table``."""
    new: Ids = field(init=False)
    """[R] new tokens a row."""
    entry_rows: Ids = field(init=False)
    """[E] the row of each entry."""
    entry_indices: Ids = field(init=False)
    """[E] each entry's index within its own table."""

    def __post_init__(self) -> None:
        # All that reads the step asks for these, some several times.
        derive = object.__setattr__
        derive(self, "new", self.token_starts[1:] - self.token_starts[:-1])
        entries = self.table_starts[1:] - self.table_starts[:-1]
        derive(self, "entry_rows", np.arange(len(self.rows)).repeat(entries))
        derive(self, "entry_indices", np.arange(len(self.table)) - self.table_starts[:-1].repeat(entries))

    def shape(self) -> StepShape:
        # As a loop: up to some fifty rows that is faster than a dozen operations on arrays.
        chunks = decodes = context = 0
        attention = 0.0
        for new, row in zip(self.new.tolist(), self.rows, strict=True):
            if new == 1 and row.past > 0:
                decodes += 1
                context += row.past + 1
            else:
                chunks += new
                attention += new * (row.past + new / 2)
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
    staged = StagedStep(
        rows=plan.rows,
        tokens=np.array(tokens, dtype=np.int64),
        token_starts=np.array(token_starts, dtype=np.int64),
        past=np.array([row.past for row in plan.rows], dtype=np.int64),
        table=np.array(table, dtype=np.int64),
        table_starts=np.array(table_starts, dtype=np.int64),
    )
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


def _check_range(values: Ids, starts: Ids, bound: int, staged: StagedStep, what: str) -> None:
    # One comparison for both ends: as unsigned, what is negative is greater than any bound.
    wrong = (values.view(np.uint64) >= bound).nonzero()[0]
    if len(wrong):
        row = int(np.searchsorted(starts, wrong[0], side="right")) - 1
        raise PlanError(
            f"sequence {staged.rows[row].sequence}: {what} ids must be 0 .. {bound - 1}, got {values[wrong[0]]}"
        )


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
    entry_rows = staged.entry_rows
    writes = staged.entry_indices >= (staged.past // block_size)[entry_rows]
    written, writers = staged.table[writes], entry_rows[writes]
    owners[written] = writers
    try:
        clash = (owners[written] != writers).nonzero()[0]
        if len(clash):
            block = written[clash[0]]
            raise PlanError(f"block {block} is written by {_names(staged, writers[clash[0]], owners[block])}")
        if len(set(written.tolist())) < len(written):
            raise PlanError("a sequence's table names a block twice among those to be written")
        read, readers = staged.table[~writes], entry_rows[~writes]
        clash = (owners[read] >= 0).nonzero()[0]
        if len(clash):
            block = read[clash[0]]
            raise PlanError(f"block {block} is read and written by {_names(staged, readers[clash[0]], owners[block])}")
    finally:
        owners[written] = -1


def _names(staged: StagedStep, first: int, second: int) -> str:
    return f"sequences {staged.rows[first].sequence} and {staged.rows[second].sequence} in one step"
