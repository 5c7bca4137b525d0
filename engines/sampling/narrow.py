"""Filtered draws among few candidates, for all rows of a batch at once.

Candidates stand in a padded matrix in the order of ids. Each filter keeps a prefix of the descending order, so that all of them
together come down to one cut per row: a value, and how many of the ids at that value are kept (the lowest). Only values are sorted.
Every operation works along a row or element by element, so that a row's result does not depend on its mates or on the padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MASS_ERROR = 1e-5
"""Bound on the relative error of a sum of float32 weights: three roundings of an exponent of at most 30 count 5.4e-6, the exponential
and the summation 0.5e-6 together, and what lies further below is nothing."""


@dataclass(frozen=True)
class Candidates:
    """Rows of a candidate matrix [R, C]; C is the longest row's."""

    values: npt.NDArray[np.float32]
    """Logits, padded with -inf."""
    ids: Ints
    counts: Ints
    peaks: Floats
    """The row's greatest logit."""
    temperatures: Floats
    top_k: Ints
    """0 = all."""
    top_p: Floats
    """1 = all."""
    min_p: Floats
    masses: Floats
    """Sum of the weights of the whole vocabulary, for rows with top_p and no top_k; unused elsewhere."""
    uniforms: Floats


def draw(candidates: Candidates) -> tuple[list[int], list[bool]]:
    """Token per row, and which rows' tokens must not be trusted: the nucleus ends so close to an edge that ``masses`` must be known
    better, or beyond the candidates."""
    order = -np.sort(-candidates.values, axis=1)
    kept, unsure = _prefix_lengths(candidates, order)
    rows = np.arange(kept.shape[0])
    cut = order[rows, kept - 1][:, None]
    ties = kept - np.count_nonzero(order > cut, axis=1)
    at_cut = candidates.values == cut
    keep = (candidates.values > cut) | (at_cut & (np.cumsum(at_cut, axis=1) <= ties[:, None]))
    cumulative = np.cumsum(np.where(keep, _weights(candidates, candidates.values), 0.0), axis=1)
    total = cumulative[:, -1:]
    chosen = np.count_nonzero(cumulative <= candidates.uniforms[:, None] * total, axis=1)
    # Where rounding carries the target to the total itself, the last token with weight is meant.
    chosen = np.minimum(chosen, np.count_nonzero(cumulative < total, axis=1))
    return candidates.ids[rows, chosen].tolist(), unsure.tolist()


def _weights(candidates: Candidates, values: npt.NDArray[np.float32]) -> Floats:
    return np.exp((values.astype(np.float64) - candidates.peaks[:, None]) / candidates.temperatures[:, None])


def _prefix_lengths(candidates: Candidates, order: npt.NDArray[np.float32]) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """How many of each row's candidates, in descending order, pass every filter."""
    weights = _weights(candidates, order)
    cumulative = np.cumsum(weights, axis=1)
    rows = np.arange(order.shape[0])
    by_count = np.where(candidates.top_k > 0, np.minimum(candidates.top_k, candidates.counts), candidates.counts)
    mass = np.where(candidates.top_k > 0, cumulative[rows, by_count - 1], candidates.masses)
    target = candidates.top_p * mass
    all_kept = candidates.top_p >= 1.0
    by_mass = np.where(all_kept, candidates.counts, np.count_nonzero(cumulative < target[:, None], axis=1) + 1)
    by_weight = np.count_nonzero(weights >= candidates.min_p[:, None], axis=1)
    others = np.minimum(by_count, by_weight)
    slack = target * np.where(candidates.top_k > 0, 0.0, MASS_ERROR)
    nearest = np.count_nonzero(cumulative < (target - slack)[:, None], axis=1) + 1
    furthest = np.count_nonzero(cumulative < (target + slack)[:, None], axis=1) + 1
    blurred = np.minimum(nearest, others) != np.minimum(furthest, others)
    beyond = (candidates.top_k == 0) & (furthest > candidates.counts) & (by_weight >= candidates.counts)
    return np.maximum(np.minimum(by_mass, others), 1), ~all_kept & (blurred | beyond)
