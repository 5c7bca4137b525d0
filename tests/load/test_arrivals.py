"""Arrival processes: their rates, their spread, their ramps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from loadtest.arrivals import Arrivals, RateCurve, constant_rate, parse_burstiness, parse_ramp
from loadtest.errors import WorkloadError


def take(arrivals: Arrivals, count: int, seed: int = 1) -> np.ndarray:
    return np.array(list(itertools.islice(arrivals.times(seed), count)))


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5), (math.inf, 0.0)])
def test_gaps_have_the_rate_and_the_variation_asked_for(burstiness: float, variation: float) -> None:
    gaps = np.diff(take(Arrivals(constant_rate(20.0), burstiness), 20_000))
    assert gaps.mean() == pytest.approx(0.05, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.1, abs=1e-6)


def test_a_seed_replays_and_another_differs() -> None:
    arrivals = Arrivals(constant_rate(5.0))
    assert (take(arrivals, 100, 3) == take(arrivals, 100, 3)).all()
    assert (take(arrivals, 100, 3) != take(arrivals, 100, 4)).any()


def test_a_ramp_has_its_rate_everywhere() -> None:
    curve = parse_ramp("10..50:100", None)
    times = take(Arrivals(curve, math.inf), 3100)
    for start in (0, 45, 90):
        seen = ((times >= start) & (times < start + 10)).sum()
        assert seen == pytest.approx(10 * curve.rate(start + 5.0), abs=1.5)
    assert ((times >= 100) & (times < 100.5)).sum() == pytest.approx(25, abs=1.5)


def test_a_staircase_holds_each_rate_for_its_time() -> None:
    times = take(Arrivals(parse_ramp("2,8,4:10", None), math.inf), 140)
    counts = [int(((times >= start) & (times < start + 10)).sum()) for start in (0, 10, 20)]
    assert counts == pytest.approx([20, 80, 40], abs=1)


def test_a_rate_that_ends_at_zero_ends_the_arrivals() -> None:
    curve = RateCurve(((0.0, 10.0), (10.0, 0.0)))
    assert len(list(Arrivals(curve, math.inf).times(0))) == pytest.approx(50, abs=1)


def test_a_rate_that_begins_at_zero_loses_nobody() -> None:
    times = take(Arrivals(RateCurve(((0.0, 0.0), (10.0, 10.0))), math.inf), 50)
    assert times[-1] == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize("text", ["", "a..b", "5..10:0", "-1..2:5", "0,0:5", "1..2"])
def test_bad_ramps_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="--ramp"):
        parse_ramp(text, None)


def test_burstiness_words() -> None:
    assert parse_burstiness("poisson") == 1.0
    assert math.isinf(parse_burstiness("constant"))
    assert parse_burstiness("0.5") == 0.5
    for bad in ("0", "-1", "x", "nan"):
        with pytest.raises(WorkloadError, match="--arrivals"):
            parse_burstiness(bad)
