"""Draws that look at the whole vocabulary: no filter, or filters that keep more tokens than a candidate matrix should hold.

One row at a time: a row of weights stays in the second-level cache, a matrix of rows does not.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from engines.sampling.params import SamplingParams
from engines.sampling.thresholds import Logits

_BLOCK = 256
_SORTABLE = 1024
_BINS = 2048

_Float = TypeVar("_Float", np.float32, np.float64)
Weights64 = npt.NDArray[np.float64]


def relative_weights(
    row: Logits, peak: np.float32, temperature: float, out: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """exp((row - peak) / temperature) in float32, into ``out``: the likeliest token weighs 1."""
    np.subtract(row, peak, out=out)
    if temperature != 1.0:
        np.multiply(out, np.float32(min(1.0 / temperature, 3e38)), out=out)
    return np.exp(out, out=out)


def exact_weights(row: Logits, peak: float, temperature: float) -> Weights64:
    """The same in float64: the definition that filters are held to."""
    weights = row.astype(np.float64)
    weights -= peak
    weights /= temperature
    return np.exp(weights, out=weights)


def draw_by_blocks(weights: npt.NDArray[_Float], uniform: float) -> int:
    """Inverse of the cumulative weights in the order of ids, at ``uniform`` in [0, 1). Never returns a token of weight 0.

    Sums of blocks first, then one block element by element, both accumulated in float64: the error does not grow with the vocabulary.
    """
    sums = np.add.reduceat(weights, np.arange(0, weights.shape[0], _BLOCK)).astype(np.float64).cumsum()
    target = uniform * float(sums[-1])
    block = _first_above(sums, target)
    before = float(sums[block - 1]) if block else 0.0
    start = block * _BLOCK
    within = weights[start : start + _BLOCK].astype(np.float64).cumsum()
    return start + _first_above(within, target - before)


def _first_above(cumulative: Weights64, target: float) -> int:
    """First index whose cumulative value exceeds target; where rounding pushed the target past the end, the last with weight."""
    index = int(cumulative.searchsorted(target, side="right"))
    if index < cumulative.shape[0]:
        return index
    return int(cumulative.searchsorted(cumulative[-1], side="left"))


def draw_filtered(values: Logits, peak: float, params: SamplingParams, uniform: float) -> int:
    """Place of the token drawn among candidates in the order of ids, in time linear in their number.

    ``values`` are the candidates' logits: the whole vocabulary's where top_p applies without top_k, for it needs all of their mass.
    """
    weights = exact_weights(values, peak, params.temperature)
    if params.top_k:
        ones = (values > -np.inf).astype(np.float64)
        _keep(values, weights, *prefix_by_mass(values, ones, float(params.top_k)))
    if params.top_p < 1.0:
        _keep(values, weights, *prefix_by_mass(values, weights, params.top_p * float(weights.sum())))
    if params.min_p > 0.0:
        weights *= weights >= params.min_p
    return draw_by_blocks(weights, uniform)


def _keep(values: Logits, weights: Weights64, cut: np.float32, ties: int) -> None:
    """Zero what lies below ``cut``, and all but the first ``ties`` at it."""
    weights *= values >= cut
    weights[np.flatnonzero(values == cut)[ties:]] = 0.0


def prefix_by_mass(values: Logits, masses: Weights64, target: float) -> tuple[np.float32, int]:
    """The shortest prefix, in descending order of values, whose masses sum to ``target``, or all where they do not: its least value,
    and how many at it.

    A weighted selection by histograms: the bin in which the prefix ends is split again until it is small enough to sort, or one value.
    Linear in what is given, never a sort of it. Where a mass is zero the value counts for nothing and may be -inf; one is not.
    """
    if float(masses.min()) == 0.0:
        heavy = np.flatnonzero(masses)
        values, masses = values[heavy], masses[heavy]
    above = 0.0
    while values.shape[0] > _SORTABLE:
        low, high = float(values.min()), float(values.max())
        if low == high:
            break
        bins = _histogram_bins(values, low, high)
        cumulative = above + np.cumsum(np.bincount(bins, masses, _BINS))
        end = min(int(np.searchsorted(cumulative, target, side="left")), int(bins.max()))
        if end:
            above = float(cumulative[end - 1])
        inside = np.flatnonzero(bins == end)
        values, masses = values[inside], masses[inside]
    order = np.argsort(-values, kind="stable")
    reached = int(np.searchsorted(above + np.cumsum(masses[order]), target, side="left"))
    last = min(reached, values.shape[0] - 1)
    cut: np.float32 = values[order[last]]
    return cut, last + 1 - int(np.count_nonzero(values > cut))


def _histogram_bins(values: Logits, low: float, high: float) -> npt.NDArray[np.intp]:
    """Bin 0 holds ``high``, the last ``low``; greater values never stand in later bins."""
    scaled = values.astype(np.float64)
    np.subtract(high, scaled, out=scaled)
    scaled *= _BINS / (high - low)
    return np.minimum(scaled, _BINS - 1, out=scaled).astype(np.intp)
