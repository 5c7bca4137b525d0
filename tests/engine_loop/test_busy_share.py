"""What share of recent time an engine computed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.busy_share import WINDOW, BusyShare


def test_idle_is_nothing_and_always_busy_is_everything() -> None:
    share = BusyShare(0.0)
    assert share.at(100.0) == 0.0
    for step in range(1, 2000):
        share.ended(100.0 + step * 0.05, 0.05)
    assert share.at(100.0 + 1999 * 0.05) == pytest.approx(1.0, abs=1e-3)


def test_half_the_time_is_a_half() -> None:
    share = BusyShare(0.0)
    for step in range(1, 4000):
        share.ended(step * 0.1, 0.05)
    assert share.at(399.9) == pytest.approx(0.5, abs=0.01)


def test_it_falls_while_idle_and_counts_the_step_that_runs() -> None:
    share = BusyShare(0.0)
    share.ended(100.0, 100.0)
    full = share.at(100.0)
    assert share.at(100.0 + WINDOW) == pytest.approx(full / math.e)
    assert share.at(100.0 + WINDOW, running=WINDOW) == pytest.approx(full, abs=0.01)
    assert share.at(99.0) == full  # a reader's clock may be a moment behind


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 200)), max_size=30))
def test_it_is_always_a_share(steps: list[tuple[float, float]]) -> None:
    share, now = BusyShare(0.0), 0.0
    for passed, seconds in steps:
        now += passed
        share.ended(now, seconds)
        assert 0.0 <= share.at(now) <= 1.0
