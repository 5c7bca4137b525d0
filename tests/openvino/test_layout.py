from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.contract import KvGroup, PlanError, Row, RunnerLimits, Sample, Score, StepPlan
from engines.openvino.layout import lay_out
from engines.openvino.plan_check import PlanCheck

LIMITS = RunnerLimits(
    vocab_size=100,
    block_size=4,
    block_count=50,
    bytes_per_block=1,
    max_rows=8,
    max_step_tokens=1000,
    max_context=200,
    kv_groups=(KvGroup((0,), None, 1),),
)


@dataclass(frozen=True)
class Drawn:
    past: int
    new: int
    want: int
    """Positions sampled; 0 = nothing wanted."""


rows = st.lists(
    st.builds(Drawn, past=st.integers(0, 40), new=st.integers(1, 20), want=st.integers(0, 20)), min_size=1, max_size=8
)


def make_plan(drawn: list[Drawn]) -> StepPlan:
    """Blocks 0, 1, 2, ... in order, so that no row shares one."""
    made, block = [], 0
    for at, one in enumerate(drawn):
        needed = -(-(one.past + one.new) // LIMITS.block_size)
        table = array("i", (entry % LIMITS.block_count for entry in range(block, block + needed + 2)))
        block += needed
        count = min(one.want, one.new)
        ids = array("i", ((at * 31 + place) % 100 for place in range(one.new)))
        made.append(Row(at, ids, one.past, (table,), Sample(count) if count else None))
    return StepPlan(0, made)


@given(rows)
@settings(max_examples=100, deadline=None)
def test_a_layout_says_what_the_rows_say(drawn: list[Drawn]) -> None:
    plan = make_plan(drawn)
    layout = lay_out(plan, {}, LIMITS)
    assert list(layout.begins) == [0, *np.cumsum([one.new for one in drawn]).tolist()]
    assert list(layout.past) == [one.past for one in drawn]
    assert layout.contexts == [one.past + one.new for one in drawn]
    wanted: list[int] = []
    for at, (one, row) in enumerate(zip(drawn, plan.rows, strict=True)):
        span = slice(layout.begins[at], layout.begins[at + 1])
        assert list(layout.tokens[span]) == list(row.tokens or ())
        assert list(layout.positions[span]) == list(range(one.past, one.past + one.new))
        entries = slice(layout.table_begins[at], layout.table_begins[at + 1])
        assert list(layout.table[entries]) == list(row.blocks[0][: -(-(one.past + one.new) // 4)])
        wanted += range(span.stop - min(one.want, one.new), span.stop)
    assert list(layout.wanted) == wanted
    assert len(layout.written) == sum(-(-(one.past + one.new) // 4) - one.past // 4 for one in drawn)


def test_a_carried_token_is_looked_up_by_sequence() -> None:
    plan = StepPlan(
        0, [Row(7, None, 3, (array("i", [0]),), None), Row(8, None, 0, (array("i", [1]),), Score(array("i", [4])))]
    )
    layout = lay_out(plan, {7: 70, 8: 80}, LIMITS)
    assert list(layout.tokens) == [70, 80]
    assert list(layout.wanted) == [1]
    with pytest.raises(PlanError, match="sequence 8: tokens is None, but the previous step drew no token"):
        lay_out(plan, {7: 70}, LIMITS)


def allowed(plan: StepPlan) -> bool:
    """The rule, one block at a time: what a row writes is named once in the whole step."""
    named: list[int] = []
    written: list[int] = []
    for row in plan.rows:
        needed = -(-(row.past + len(row.tokens or ())) // LIMITS.block_size)
        named += row.blocks[0][:needed]
        written += row.blocks[0][row.past // LIMITS.block_size : needed]
    return all(named.count(block) == 1 for block in written)


tables = st.lists(
    st.tuples(st.integers(0, 11), st.integers(1, 6), st.lists(st.integers(0, 9), min_size=5, max_size=5)),
    min_size=1,
    max_size=4,
)


@given(tables)
@settings(max_examples=400, deadline=None)
def test_a_block_that_is_written_is_named_once(drawn: list[tuple[int, int, list[int]]]) -> None:
    plan = StepPlan(
        0,
        [
            Row(at, array("i", [1] * new), past, (array("i", table),), None)
            for at, (past, new, table) in enumerate(drawn)
        ],
    )
    check = PlanCheck(LIMITS)
    layout = lay_out(plan, {}, LIMITS)
    if allowed(plan):
        check.check(plan, layout)
    else:
        with pytest.raises(PlanError, match=r"block \d: is written in this step and named more than once"):
            check.check(plan, layout)
    assert not check._marks.any()


def test_a_refusal_names_the_row_that_broke_the_rule() -> None:
    plan = make_plan([Drawn(0, 5, 1), Drawn(3, 6, 1), Drawn(0, 4, 1)])
    for place, value, message in [
        (1, 100, "sequence 1: token id must be 0 .. 99, got 100"),
        (2, -5, "sequence 2: token id must be 0 .. 99, got -5"),
    ]:
        ids = array("i", plan.rows[place].tokens or ())
        ids[-1] = value
        made = list(plan.rows)
        made[place] = Row(place, ids, made[place].past, made[place].blocks, None)
        broken = StepPlan(0, made)
        with pytest.raises(PlanError, match=message):
            PlanCheck(LIMITS).check(broken, lay_out(broken, {}, LIMITS))
