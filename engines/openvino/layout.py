"""A step plan laid flat: the rows of a step side by side, in the arrays that the library reads. Nothing here changes any state.

Rows are few and short in most steps, so that plain arrays beat NumPy here: a call of it costs as much as ten appends.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import TypeAlias

from engines.contract import PlanError, Row, RunnerLimits, Sample, Score, StepPlan

Ints32: TypeAlias = "array[int]"
Ints64: TypeAlias = "array[int]"


class StepLayout:
    """S rows, T new tokens, E table entries, R wanted positions."""

    __slots__ = ("begins", "contexts", "past", "positions", "table", "table_begins", "tokens", "wanted", "written")

    def __init__(self) -> None:
        self.tokens: Ints64 = array("q")
        """[T]"""
        self.positions: Ints64 = array("q")
        """[T] place of each token in its sequence."""
        self.past: Ints32 = array("i")
        """[S]"""
        self.contexts: list[int] = []
        """[S] past and new tokens together."""
        self.begins: Ints32 = array("i", (0,))
        """[S + 1] into tokens."""
        self.table: Ints32 = array("i")
        """[E] block ids."""
        self.table_begins: Ints32 = array("i", (0,))
        """[S + 1] into table."""
        self.written: Ints32 = array("i")
        """Block ids that the step writes, row after row."""
        self.wanted: Ints64 = array("q")
        """[R] places in the step, ascending, after which logits are wanted."""


def lay_out(plan: StepPlan, drawn: Mapping[int, int], limits: RunnerLimits) -> StepLayout:
    """``drawn``: the last token that the previous step drew for each sequence. Raises PlanError for a row that breaks a limit or
    contradicts itself; ids are not looked at."""
    layout = StepLayout()
    for row in plan.rows:
        begin = len(layout.tokens)
        if row.tokens is None:
            layout.tokens.append(_carried(row, drawn))
        else:
            layout.tokens.extend(iter(row.tokens))  # an array takes another typecode only by items
        end = len(layout.tokens)
        context = _check_context(row, end - begin, limits)
        layout.past.append(row.past)
        layout.contexts.append(context)
        layout.positions.extend(range(row.past, context))
        layout.begins.append(end)
        _add_table(layout, row, context, limits.block_size)
        if row.want is not None:
            layout.wanted.extend(range(end - _want_count(row, end - begin, limits), end))
    if len(layout.tokens) > limits.max_step_tokens:
        raise PlanError(f"tokens: at most {limits.max_step_tokens} in one step, got {len(layout.tokens)}")
    return layout


def _carried(row: Row, drawn: Mapping[int, int]) -> int:
    token = drawn.get(row.sequence)
    if token is None:
        raise PlanError(f"sequence {row.sequence}: tokens is None, but the previous step drew no token for it")
    return token


def _check_context(row: Row, new: int, limits: RunnerLimits) -> int:
    if new < 1:
        raise PlanError(f"sequence {row.sequence}: new tokens must be at least 1, got {new}")
    if row.past < 0:
        raise PlanError(f"sequence {row.sequence}: past must be at least 0, got {row.past}")
    if row.past + new > limits.max_context:
        raise PlanError(
            f"sequence {row.sequence}: past + new must be at most {limits.max_context}, got {row.past} + {new}"
        )
    return row.past + new


def _add_table(layout: StepLayout, row: Row, context: int, block_size: int) -> None:
    if len(row.blocks) != 1:
        raise PlanError(f"sequence {row.sequence}: blocks must hold 1 table, for the 1 KV group, got {len(row.blocks)}")
    table = row.blocks[0]
    needed = -(-context // block_size)
    if len(table) < needed:
        raise PlanError(f"sequence {row.sequence}: {context} tokens need {needed} blocks, its table has {len(table)}")
    layout.table.extend(table[:needed])
    layout.table_begins.append(len(layout.table))
    layout.written.extend(table[row.past // block_size : needed])


def _want_count(row: Row, new: int, limits: RunnerLimits) -> int:
    """At how many of its last positions the row wants logits."""
    want = row.want
    if isinstance(want, Sample):
        if not 1 <= want.count <= new:
            raise PlanError(
                f"sequence {row.sequence}: sample count must be 1 .. {new} (its new tokens), got {want.count}"
            )
        return want.count
    if isinstance(want, Score):
        _check_score(row.sequence, want, new, limits)
        return len(want.targets)
    return 0


def _check_score(sequence: int, want: Score, new: int, limits: RunnerLimits) -> None:
    if not 1 <= len(want.targets) <= new:
        raise PlanError(
            f"sequence {sequence}: score targets must be 1 .. {new} (its new tokens), got {len(want.targets)}"
        )
    if not 0 <= want.top <= limits.vocab_size:
        raise PlanError(f"sequence {sequence}: score top must be 0 .. {limits.vocab_size}, got {want.top}")
    low, high = min(want.targets), max(want.targets)
    if low < 0 or high >= limits.vocab_size:
        raise PlanError(f"sequence {sequence}: score targets must be 0 .. {limits.vocab_size - 1}, got {low} .. {high}")
