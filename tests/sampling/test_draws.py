from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, example, given, settings

from engines.sampling.batch import RandomRow, draw_rows
from engines.sampling.params import SamplingParams
from tests.sampling.brute_force import kept_weights, nearest_edge
from tests.sampling.rows import KINDS, Row, make_row, params, rows

ALMOST_ONE = 1.0 - 2.0**-53
ROUNDING = 1e-9
"""Relative to the mass: how near to a border between two tokens a number must not lie for its token to be defined."""


def draw(row: Row, how: SamplingParams, numbers: Sequence[float]) -> list[int]:
    scratch = np.empty(len(row), np.float32)
    return draw_rows([RandomRow(row, row.max(), how, number) for number in numbers], scratch)


def check_against_definition(row: Row, how: SamplingParams, *, rounding: float = ROUNDING, most: int = 400) -> None:
    """Draw at both ends of each kept token's interval: a token too many or too few anywhere moves some of them."""
    weights = kept_weights(row, how)
    ids = np.flatnonzero(weights)
    ends = np.cumsum(weights[ids]) / weights.sum()
    begins = np.concatenate(([0.0], ends[:-1]))
    clear = ends - begins > 4 * rounding
    chosen = np.flatnonzero(clear)[:: max(1, int(clear.sum()) // most)]
    low, high = begins[chosen] + rounding, ends[chosen] - rounding
    expected = ids[chosen].tolist()
    assert draw(row, how, low.tolist()) == expected
    assert draw(row, how, high.tolist()) == expected


@given(rows(), params(filtered=True))
@settings(max_examples=250, deadline=None)
@example(make_row("equal", 3000, 0), SamplingParams(temperature=1.0, top_k=50))
@example(make_row("equal", 3000, 0), SamplingParams(temperature=1.0, top_p=0.5))
@example(make_row("flat", 3000, 0), SamplingParams(temperature=1.0, top_p=0.9))
@example(make_row("flat", 3000, 0), SamplingParams(temperature=1.0, top_k=1500, top_p=0.9, min_p=0.98))
@example(make_row("forbidden", 3000, 0), SamplingParams(temperature=1.0, top_k=2900))
def test_filters_are_exact(row: Row, how: SamplingParams) -> None:
    assume(nearest_edge(row, how) > 1e-12)
    check_against_definition(row, how)


@given(rows(), params())
@settings(max_examples=150, deadline=None)
def test_ends_of_the_unit_interval_are_the_first_and_last_possible_token(row: Row, how: SamplingParams) -> None:
    assume(nearest_edge(row, how) > 1e-12)
    weights = kept_weights(row, how)
    possible = np.flatnonzero(weights > 1e-6 * weights.sum())
    first, last = draw(row, how, [0.0, ALMOST_ONE])
    assert weights[first] > 0 or how == SamplingParams(temperature=how.temperature, seed=how.seed)
    assert first <= possible[0]
    assert last >= possible[-1]
    assert row[first] > -np.inf
    assert row[last] > -np.inf


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_whole_vocabulary_without_filters(kind: str, temperature: float) -> None:
    check_against_definition(make_row(kind, 3001, 5), SamplingParams(temperature=temperature), rounding=5e-6)


@pytest.mark.parametrize("kind", ["peaked", "normal", "flat", "ties", "equal"])
@pytest.mark.parametrize(
    "how",
    [
        SamplingParams(temperature=0.8, top_k=50),
        SamplingParams(temperature=1.0, top_k=5000),
        SamplingParams(temperature=0.8, top_p=0.95),
        SamplingParams(temperature=1.0, top_k=40, top_p=0.9, min_p=0.05),
        SamplingParams(temperature=1.5, min_p=0.02),
    ],
)
def test_real_vocabulary(kind: str, how: SamplingParams) -> None:
    row = make_row(kind, 49_152, 11)
    # Among equals the masses are whole numbers, and an edge exactly met is defined.
    assert nearest_edge(row, how) > 1e-12 or kind in ("equal", "ties")
    check_against_definition(row, how, most=60)


def test_ties_go_to_the_lowest_ids() -> None:
    row = np.array([1, 3, 2, 3, 3, 2, 2, 0], np.float32)
    assert set(draw(row, SamplingParams(temperature=1.0, top_k=2), np.linspace(0, ALMOST_ONE, 50).tolist())) == {1, 3}
    assert set(draw(row, SamplingParams(temperature=1.0, top_k=5), np.linspace(0, ALMOST_ONE, 500).tolist())) == {
        1,
        2,
        3,
        4,
        5,
    }


def test_nucleus_among_equals_is_cut_by_count() -> None:
    row = np.zeros(2000, np.float32)
    drawn = draw(row, SamplingParams(temperature=1.0, top_p=0.25), np.linspace(0, ALMOST_ONE, 3000).tolist())
    assert set(drawn) == set(range(500))


def test_a_number_at_the_very_end_never_draws_an_impossible_token() -> None:
    row = np.full(1000, -np.inf, np.float32)
    row[3] = row[500] = 1.0
    for how in (SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_p=0.99)):
        assert draw(row, how, [0.0, 0.49, 0.51, ALMOST_ONE]) == [3, 3, 500, 500]


def test_tiny_temperature_is_greedy_and_warns_of_nothing() -> None:
    row = make_row("peaked", 500, 1)
    for how in (SamplingParams(temperature=1e-300), SamplingParams(temperature=1e-300, top_p=0.5)):
        assert set(draw(row, how, [0.0, 0.5, ALMOST_ONE])) == {int(row.argmax())}


def frequencies(row: Row, how: SamplingParams, count: int) -> npt.NDArray[np.int64]:
    numbers = ((np.arange(count) + 0.5) / count).tolist()
    return np.bincount(draw(row, how, numbers), minlength=len(row))


@pytest.mark.parametrize(
    "how",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.0, top_k=8),
        SamplingParams(temperature=1.3, top_p=0.8),
    ],
)
def test_evenly_spread_numbers_give_the_distribution_itself(how: SamplingParams) -> None:
    row = make_row("normal", 60, 3)
    weights = kept_weights(row, how)
    count = 20_000
    assert np.abs(frequencies(row, how, count) / count - weights / weights.sum()).max() < 1.01 / count + 1e-6


@pytest.mark.parametrize("kind", ["peaked", "normal", "flat"])
def test_a_threshold_that_lies_too_high_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds are guesses made in float32; no token may hang on one."""
    monkeypatch.setattr("engines.sampling.batch.nucleus_threshold", lambda row, *_: row.max())
    check_against_definition(make_row(kind, 900, 4), SamplingParams(temperature=1.0, top_p=0.9))


def test_an_edge_that_is_met_exactly() -> None:
    row = np.zeros(4, np.float32)
    assert set(draw(row, SamplingParams(temperature=1.0, top_p=0.5), [0.0, 0.49, 0.51, ALMOST_ONE])) == {0, 1}
