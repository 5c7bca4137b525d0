from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.sampling.thresholds import min_p_threshold, nucleus_threshold, top_k_threshold
from engines.sampling.wide import prefix_by_mass
from tests.sampling.rows import Row, make_row, rows


@given(rows(), st.integers(1, 4000))
@settings(max_examples=150, deadline=None)
def test_top_k_threshold_loses_none(row: Row, k: int) -> None:
    kth = np.sort(row)[-min(k, len(row))]
    assert top_k_threshold(row, k) <= kth


@pytest.mark.parametrize("k", [1, 5, 50, 200])
def test_top_k_threshold_leaves_few(k: int) -> None:
    row = make_row("normal", 49_152, 2)
    assert int((row >= top_k_threshold(row, k)).sum()) <= 1.3 * k + 3


@given(rows(), st.sampled_from([1e-9, 1e-3, 0.05, 0.5, 1.0]), st.sampled_from([0.01, 1.0, 30.0]))
@settings(max_examples=100, deadline=None)
def test_min_p_threshold_loses_none(row: Row, min_p: float, temperature: float) -> None:
    peak = float(row.max())
    kept = np.exp((row.astype(np.float64) - peak) / temperature) >= min_p
    assert (row[kept] >= min_p_threshold(peak, temperature, min_p)).all()


@given(rows(), st.floats(0.01, 0.999))
@settings(max_examples=100, deadline=None)
def test_nucleus_threshold_holds_the_mass(row: Row, share: float) -> None:
    peak = float(row.max())
    weights = np.exp(row - row.max())
    mass = share * float(weights.sum(dtype=np.float64))
    kept = row >= nucleus_threshold(row, weights, peak, 1.0, mass)
    assert float(weights[kept].sum(dtype=np.float64)) >= mass * (1 - 1e-6)


@given(rows(6000).filter(lambda row: bool((row > -np.inf).all())), st.floats(1e-6, 1.2))
@settings(max_examples=150, deadline=None)
def test_prefix_by_mass_is_the_shortest(row: Row, share: float) -> None:
    masses = np.exp(row.astype(np.float64) - float(row.max()))
    order = np.argsort(-row, kind="stable")
    cumulative = np.cumsum(masses[order])
    target = share * float(cumulative[-1])
    cut, ties = prefix_by_mass(row, masses, target)
    length = int((row > cut).sum()) + ties
    slack = 1e-12 * float(cumulative[-1])
    assert 1 <= ties <= int((row == cut).sum())
    assert length == len(row) or cumulative[length - 1] >= target - slack
    assert length == 1 or cumulative[length - 2] < target + slack


@pytest.mark.parametrize("clusters", [1, 20])
def test_prefix_by_mass_of_values_that_crowd_towards_one_end(clusters: int) -> None:
    """Histograms narrow slowly here: each holds nearly all in one bin. It must end all the same, and be right."""
    row = np.concatenate([-(2.0 ** -np.linspace(0, 120, 3000)) for _ in range(clusters)]).astype(np.float32)
    masses = np.exp(row.astype(np.float64))
    cut, ties = prefix_by_mass(row, masses, 0.25 * masses.sum())
    order = np.sort(row)[::-1]
    length = math.ceil(0.25 * masses.sum() / masses.max())
    assert abs(int((row > cut).sum()) + ties - length) <= 1
    assert cut in order
