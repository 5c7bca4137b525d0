"""What prompts get of a step: by tokens, and by what the step would take."""

from __future__ import annotations

import pytest

from engines.manifest import StepProfile
from server.scheduling.budget import AdaptiveBudget, FixedBudget, Pace, TimeAllowance
from server.scheduling.cost import StepCost

PROFILE = StepProfile(
    fixed=0.01,
    per_new_token=0.001,
    per_decode=0.001,
    per_decode_context=0.0,
    per_attention=0.0,
    machine="",
    relative_error=0.0,
)
COST = StepCost(PROFILE)
"""A step with ten streams takes 20 ms without prompts, and each prompt token one more."""
TENTH = FixedBudget(10_000, 4)


def pace(*, stretch: float = 1.0, limit: float = 0.05, due: float = 1.0) -> Pace:
    return Pace(COST, target=0.05, stretch=stretch, limit=limit, due=due)


def chunk(which: Pace, *, decodes: int = 10, prompts: int = 1, tokens: int = 10, most: FixedBudget = TENTH) -> int:
    return AdaptiveBudget(COST, which, idle=0.5, most=most).allowance(decodes, 0, prompts, tokens).most(0, 1.0)


def test_prompts_get_what_the_target_leaves() -> None:
    assert chunk(pace()) == pytest.approx(30, abs=1)


def test_without_streams_a_step_may_take_the_idle_step() -> None:
    assert chunk(pace(), decodes=0) == pytest.approx(500, abs=1)


def test_where_streams_use_the_target_up_a_step_stretches() -> None:
    assert chunk(pace(stretch=3.0), decodes=40) == pytest.approx(100, abs=1)


def test_whatever_is_left_a_step_gives_its_floor_and_never_more_than_its_tokens() -> None:
    assert chunk(pace(), decodes=100) == 4
    assert chunk(pace(), most=FixedBudget(25, 4)) == 15


def test_prompts_that_would_be_through_in_time_stretch_nothing() -> None:
    # 0.59 s of work; at 30 of 50 ms a step it takes less than 1 s.
    assert pace(limit=1.0).step(0.02, 1000, 6, 590) == 0.05


def test_prompts_that_would_be_late_stretch_the_step_until_they_would_not_be() -> None:
    step = pace(limit=1.0).step(0.02, 1000, 8, 800)
    assert step == pytest.approx(0.02 / (1.0 - 0.8))
    assert 0.8 * step / (step - 0.02) == pytest.approx(1.0)


def test_a_step_never_stretches_beyond_its_limit_for_prompts_that_wait() -> None:
    assert pace(limit=0.08).step(0.02, 1000, 8, 800) == 0.08
    assert pace(limit=0.08).step(0.02, 1000, 100, 100_000) == 0.08
    assert pace(limit=0.01).step(0.02, 1000, 100, 100_000) == 0.05
    assert pace(stretch=10.0, limit=0.08).step(0.02, 1000, 100, 100_000) == 0.2


def test_the_fewer_stream_for_each_that_waits_the_earlier_a_step_stretches() -> None:
    which = pace(limit=0.08)
    assert which.step(0.02, 1000, 2, 200) == which.step(0.02, 32, 2, 200) == 0.05
    assert 0.05 < which.step(0.02, 10, 2, 200) < which.step(0.02, 9, 2, 200) < 0.08
    assert which.step(0.02, 2, 2, 200) == 0.08


def test_long_prompts_alone_stretch_a_step_no_further_where_many_stream() -> None:
    which = Pace(COST, target=0.05, stretch=2.0, limit=0.05, due=1e9, long=500)
    assert which.step(0.02, 17, 1, 500) == pytest.approx(0.04)
    assert which.step(0.02, 16, 1, 500) == which.step(0.02, 17, 1, 499) == 0.05
    assert which.step(0.03, 17, 1, 500) == pytest.approx(0.06)


def test_long_prompts_count_with_their_attention() -> None:
    dear = StepCost(StepProfile(0.01, 0.001, 0.001, 0.0, 1e-5, "", 0.0))
    which = Pace(dear, target=0.05, stretch=1.0, limit=1.0, due=1.0)
    assert which.step(0.02, 1000, 10, 600) < which.step(0.02, 1000, 1, 600)


def test_a_part_of_the_allowance_is_a_part_of_the_time() -> None:
    allowance = TimeAllowance(COST, 0.1, tokens=1000, floor=4)
    assert allowance.most(0, 0.25) == pytest.approx(25, abs=1)
    allowance.spend(0, 90)
    assert allowance.most(0, 0.25) == pytest.approx(10, abs=1)
    assert not allowance.spent
    allowance.spend(90, 10)
    assert allowance.spent
