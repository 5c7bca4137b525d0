"""The published timeout follows what requests take, and cannot starve itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine import PriorityClass
from server.telemetry import patience
from server.telemetry.patience import ENOUGH, REMEMBERED, DurationSketch, Patience

ONE, OTHER = PriorityClass.INTERACTIVE, PriorityClass.BATCH


def told(seconds: list[float], *, floor: float = 1.0) -> Patience:
    made = Patience(default=600.0, floor=floor)
    for each in seconds:
        made.finished(ONE, each)
    return made


@given(st.lists(st.floats(0.001, 80_000), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_within_five_percent(values: list[float], share: float) -> None:
    sketch = DurationSketch()
    for value in values:
        sketch.add(value)
    sketch.check_integrity()
    rank = next(i for i in range(len(values)) if i + 1 >= share * len(values) - 1e-9)
    assert sketch.quantile(share) == pytest.approx(sorted(values)[rank], rel=0.05)


def test_three_times_the_95th_percentile_of_each_class() -> None:
    made = told([10.0] * 180 + [50.0] * 20)
    assert made.timeouts()[ONE] == pytest.approx(150.0, rel=0.05)
    assert made.timeouts()[OTHER] == 600.0


def test_the_default_until_enough_is_known() -> None:
    made = told([10.0] * (ENOUGH - 1))
    assert made.timeouts()[ONE] == 600.0
    made.finished(ONE, 10.0)
    assert made.timeouts()[ONE] == pytest.approx(30.0, rel=0.05)


def test_never_below_the_floor() -> None:
    assert told([0.01] * 200, floor=5.0).timeouts()[ONE] == 5.0


def test_what_was_long_ago_is_forgotten() -> None:
    made = told([100.0] * REMEMBERED + [2.0] * 8 * REMEMBERED)
    assert made.timeouts()[ONE] == pytest.approx(6.0, rel=0.05)


def test_a_timeout_that_cuts_its_own_requests_grows() -> None:
    """The load has changed: everything now takes longer than what was told."""
    made = told([2.0] * 500)
    before = made.timeouts()[ONE]
    assert before == pytest.approx(6.0, rel=0.05)
    for _ in range(200):
        made.cut(ONE, before)
    after = made.timeouts()[ONE]
    assert after > 2.5 * before
    for _ in range(2000):
        made.cut(ONE, after)
    assert made.timeouts()[ONE] > 2.5 * after


def test_deadlines_that_clients_chose_short_say_nothing() -> None:
    made = told([10.0] * 200)
    for _ in range(1000):
        made.cut(ONE, 0.1)
    assert made.timeouts()[ONE] == pytest.approx(30.0, rel=0.05)


def test_what_is_kept_is_bounded() -> None:
    sketch = DurationSketch()
    for number in range(4 * REMEMBERED):
        sketch.add(float(number * 1000))  # beyond the last bucket as well
    assert sketch.total <= 2 * REMEMBERED
    assert len(sketch._counts) == patience._BUCKETS < 200
    sketch.check_integrity()
