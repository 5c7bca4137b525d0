"""A step plan laid flat: the rows of a step side by side, as arrays that the library reads. Nothing here changes any state."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engines.contract import PlanError, Row, RunnerLimits, Sample, Score, StepPlan

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepLayout:
    """S rows, T new tokens, E table entries, R wanted positions."""

    tokens: Int32s
    """[T]"""
    past: Int64s
    """[S]"""
    begins: Int64s
    """[S + 1] into tokens."""
    table: Int32s
    """[E] block ids."""
    table_begins: Int64s
    """[S + 1] into table."""
    wanted: Int64s
    """[R] places in the step, ascending, after which logits are wanted."""


def lay_out(plan: StepPlan, drawn: Mapping[int, int], limits: RunnerLimits) -> StepLayout:
    """``drawn``: the last token that the previous step drew for each sequence. Raises PlanError for a row that contradicts itself."""
    tokens, table = array("i"), array("i")
    begins, table_begins, wanted = [0], [0], array("q")
    block_size, begin = limits.block_size, 0
    for row in plan.rows:
        if row.tokens is None:
            tokens.append(_carried(row, drawn))
        else:
            tokens.extend(row.tokens)
        end = len(tokens)
        if row.past < 0:
            raise PlanError(f"sequence {row.sequence}: past must be at least 0, got {row.past}")
        needed = -(-(row.past + end - begin) // block_size)
        if len(row.blocks) != 1:
            raise PlanError(
                f"sequence {row.sequence}: blocks must hold 1 table, for the 1 KV group, got {len(row.blocks)}"
            )
        table.extend(row.blocks[0][:needed])
        if len(table) != table_begins[-1] + needed:
            raise PlanError(
                f"sequence {row.sequence}: {row.past} + {end - begin} tokens need {needed} blocks, got {len(row.blocks[0])}"
            )
        if row.want is not None:
            wanted.extend(range(end - _want_count(row, end - begin, limits), end))
        begins.append(end)
        table_begins.append(len(table))
        begin = end
    return StepLayout(
        tokens=np.frombuffer(tokens, np.int32) if tokens else np.empty(0, np.int32),
        past=np.array([row.past for row in plan.rows], np.int64),
        begins=np.array(begins, np.int64),
        table=np.frombuffer(table, np.int32) if table else np.empty(0, np.int32),
        table_begins=np.array(table_begins, np.int64),
        wanted=np.frombuffer(wanted, np.int64) if wanted else np.empty(0, np.int64),
    )


def _carried(row: Row, drawn: Mapping[int, int]) -> int:
    token = drawn.get(row.sequence)
    if token is None:
        raise PlanError(f"sequence {row.sequence}: tokens is None, but the previous step drew no token for it")
    return token


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
        count = len(want.targets)
        if not 1 <= count <= new:
            raise PlanError(f"sequence {row.sequence}: score targets must be 1 .. {new} (its new tokens), got {count}")
        if not 0 <= want.top <= limits.vocab_size:
            raise PlanError(f"sequence {row.sequence}: score top must be 0 .. {limits.vocab_size}, got {want.top}")
        if min(want.targets) < 0 or max(want.targets) >= limits.vocab_size:
            raise PlanError(
                f"sequence {row.sequence}: score targets must be 0 .. {limits.vocab_size - 1}, "
                f"got {min(want.targets)} .. {max(want.targets)}"
            )
        return count
    return 0
