"""Everything that could hurt the library or the other rows, checked before the library sees it: it segfaults on a block id out of
range and silently accepts a token id out of range. Whole arrays at a time: microseconds a step."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from engines.contract import PlanError, RunnerLimits, StepPlan
from engines.openvino.layout import StepLayout


def check_sequences(plan: StepPlan, is_open: Container[int], limits: RunnerLimits) -> None:
    """Opened, closed and named sequences, before anything is laid out. Raises PlanError."""
    if len(plan.rows) > limits.max_rows:
        raise PlanError(f"rows: at most {limits.max_rows} in one step, got {len(plan.rows)}")
    opened = {spec.sequence for spec in plan.opened}
    if len(opened) != len(plan.opened):
        raise PlanError(f"opened: a sequence is named twice among {[spec.sequence for spec in plan.opened]}")
    closed = set(plan.closed)
    if len(closed) != len(plan.closed):
        raise PlanError(f"closed: a sequence is named twice among {list(plan.closed)}")
    for sequence in opened:
        if sequence in is_open:
            raise PlanError(f"opened: sequence {sequence} is open already")
    for sequence in closed:
        if sequence not in is_open:
            raise PlanError(f"closed: sequence {sequence} is not open")
    seen: set[int] = set()
    for row in plan.rows:
        sequence = row.sequence
        if sequence in seen:
            raise PlanError(f"rows: sequence {sequence} has two rows")
        seen.add(sequence)
        if sequence in closed or not (sequence in is_open or sequence in opened):
            raise PlanError(f"rows: sequence {sequence} is not open")
        if row.adapter != 0:
            raise PlanError(f"sequence {sequence}: adapter must be 0, this engine has none, got {row.adapter}")


def check_layout(plan: StepPlan, layout: StepLayout, limits: RunnerLimits) -> None:
    """Counts, ids and who writes what. Raises PlanError."""
    if layout.tokens.shape[0] > limits.max_step_tokens:
        raise PlanError(f"tokens: at most {limits.max_step_tokens} in one step, got {layout.tokens.shape[0]}")
    new = np.diff(layout.begins)
    _check_rows(plan, new < 1, new, "new tokens must be at least 1")
    total = layout.past + new
    _check_rows(plan, total > limits.max_context, total, f"past + new tokens must be at most {limits.max_context}")
    _check_ids(plan, layout.tokens, layout.begins, limits.vocab_size, "token id")
    _check_ids(plan, layout.table, layout.table_begins, limits.block_count, "block id")
    _check_writers(plan, layout, limits)


def check_copies(plan: StepPlan, limits: RunnerLimits) -> None:
    """Groups and block ids of the copies. Raises PlanError."""
    for copy in plan.copies:
        if copy.group != 0:
            raise PlanError(f"copies: group must be 0, got {copy.group}")
    check_blocks("copies", [block for copy in plan.copies for block in (copy.source, copy.target)], limits.block_count)


def check_blocks(what: str, blocks: Sequence[int], block_count: int) -> None:
    """Every id in 0 .. block_count - 1. Raises PlanError."""
    for block in blocks:
        if not 0 <= block < block_count:
            raise PlanError(f"{what}: block id must be 0 .. {block_count - 1}, got {block}")


def _check_rows(plan: StepPlan, wrong: npt.NDArray[np.bool_], values: npt.NDArray[np.int64], rule: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise PlanError(f"sequence {plan.rows[row].sequence}: {rule}, got {values[row]}")


def _check_ids(
    plan: StepPlan, ids: npt.NDArray[np.int32], begins: npt.NDArray[np.int64], bound: int, what: str
) -> None:
    # As unsigned, a negative id is a huge one: one comparison finds both kinds.
    if ids.shape[0] and int(ids.view(np.uint32).max()) >= bound:
        place = int((ids.view(np.uint32) >= bound).argmax())
        row = int(begins.searchsorted(place, side="right")) - 1
        raise PlanError(f"sequence {plan.rows[row].sequence}: {what} must be 0 .. {bound - 1}, got {ids[place]}")


def _check_writers(plan: StepPlan, layout: StepLayout, limits: RunnerLimits) -> None:
    """A block that a row writes must stand nowhere else in the step's tables, its own included."""
    first = layout.table_begins[:-1] + layout.past // limits.block_size
    counts = layout.table_begins[1:] - first
    if not counts.shape[0]:
        return
    offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    written = layout.table[np.repeat(first, counts) + offsets]
    shared = np.bincount(layout.table, minlength=limits.block_count)[written] > 1
    if shared.any():
        block = int(written[shared.argmax()])
        rows = np.searchsorted(layout.table_begins, np.flatnonzero(layout.table == block), side="right") - 1
        names = sorted({plan.rows[int(row)].sequence for row in rows})
        raise PlanError(f"block {block}: is written in this step and named more than once, by sequences {names}")
