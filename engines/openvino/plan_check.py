"""What could hurt the library or other rows, checked before the library sees it: it segfaults on a block id out of range and
silently accepts a token id out of range. Microseconds a step: long arrays are checked whole."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt

from engines.contract import PlanError, RunnerLimits, StepPlan
from engines.openvino.layout import Ints32, StepLayout


def check_sequences(plan: StepPlan, is_open: Container[int], limits: RunnerLimits) -> None:
    """Opened, closed and named sequences, before anything is laid out. Raises PlanError."""
    if len(plan.rows) > limits.max_rows:
        raise PlanError(f"rows: at most {limits.max_rows} in one step, got {len(plan.rows)}")
    opened = _distinct("opened", [spec.sequence for spec in plan.opened])
    closed = _distinct("closed", plan.closed)
    named = _distinct("rows", [row.sequence for row in plan.rows])
    for sequence in opened:
        if sequence in is_open:
            raise PlanError(f"opened: sequence {sequence} is open already")
    for sequence in closed:
        if sequence not in is_open:
            raise PlanError(f"closed: sequence {sequence} is not open")
    for sequence in named:
        if sequence in closed or not (sequence in is_open or sequence in opened):
            raise PlanError(f"rows: sequence {sequence} is not open")
    for row in plan.rows:
        if row.adapter != 0:
            raise PlanError(f"sequence {row.sequence}: adapter must be 0, this engine has none, got {row.adapter}")


def _distinct(where: str, sequences: Sequence[int]) -> set[int]:
    distinct = set(sequences)
    if len(distinct) != len(sequences):
        twice = next(sequence for sequence in sequences if sequences.count(sequence) > 1)
        raise PlanError(f"{where}: sequence {twice} is named twice")
    return distinct


def check_copies(plan: StepPlan, limits: RunnerLimits) -> None:
    """Groups and block ids of the copies. Raises PlanError."""
    for copy in plan.copies:
        if copy.group != 0:
            raise PlanError(f"copies: group must be 0, got {copy.group}")
        check_blocks("copies", (copy.source, copy.target), limits.block_count)


def check_blocks(where: str, blocks: Sequence[int], block_count: int) -> None:
    """Every id in 0 .. block_count - 1. Raises PlanError."""
    for block in blocks:
        if not 0 <= block < block_count:
            raise PlanError(f"{where}: block id must be 0 .. {block_count - 1}, got {block}")


class PlanCheck:
    """The checks of a layout's ids. Holds one byte of scratch a block, all zero between calls."""

    def __init__(self, limits: RunnerLimits) -> None:
        self._limits = limits
        self._marks = np.zeros(limits.block_count, np.uint8)

    def check(self, plan: StepPlan, layout: StepLayout) -> None:
        """Token ids, block ids, and who writes which block. Raises PlanError. At least one row."""
        bound = self._limits.vocab_size
        if min(layout.tokens) < 0 or max(layout.tokens) >= bound:
            place = next(at for at, token in enumerate(layout.tokens) if not 0 <= token < bound)
            self._refuse(plan, layout.begins, place, f"token id must be 0 .. {bound - 1}, got {layout.tokens[place]}")
        self._check_table(plan, layout)
        self._check_writers(plan, layout)

    def _check_table(self, plan: StepPlan, layout: StepLayout) -> None:
        bound = self._limits.block_count
        # As unsigned, a negative id is a huge one: one pass finds both kinds.
        table = np.frombuffer(layout.table, np.uint32)
        if int(table.max()) >= bound:
            place = int((table >= bound).argmax())
            self._refuse(
                plan, layout.table_begins, place, f"block id must be 0 .. {bound - 1}, got {layout.table[place]}"
            )

    def _check_writers(self, plan: StepPlan, layout: StepLayout) -> None:
        """A block that a row writes must stand nowhere else in the step's tables, its own included."""
        table, written = np.frombuffer(layout.table, np.int32), np.frombuffer(layout.written, np.int32)
        marks = self._marks
        marks[written] = 1
        namings = np.count_nonzero(marks[table])
        marks[written] = 0
        if namings > len(set(layout.written)):
            self._refuse_shared(plan, layout, table, written)

    def _refuse_shared(
        self, plan: StepPlan, layout: StepLayout, table: npt.NDArray[np.int32], written: npt.NDArray[np.int32]
    ) -> None:
        namings = np.bincount(table, minlength=self._limits.block_count)
        block = int(written[(namings[written] > 1).argmax()])
        rows = {bisect_right(layout.table_begins, int(place)) - 1 for place in np.flatnonzero(table == block)}
        names = sorted(plan.rows[row].sequence for row in rows)
        raise PlanError(f"block {block}: is written in this step and named more than once, by sequences {names}")

    def _refuse(self, plan: StepPlan, begins: Ints32, place: int, problem: str) -> None:
        row = plan.rows[bisect_right(begins, place) - 1]
        raise PlanError(f"sequence {row.sequence}: {problem}")
