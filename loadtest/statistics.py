"""Distributions in the field's five numbers, and confidence in a share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np


class Spread(msgspec.Struct, frozen=True):
    """Of one quantity, in seconds unless its name says otherwise."""

    count: int
    mean: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


def spread(values: Sequence[float], weights: Sequence[float] | None = None) -> Spread | None:
    """None where there is no value. With weights, each value counts so often; values of weight 0 do not count."""
    if weights is not None:
        pairs = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight > 0]
        values = [value for value, _ in pairs]
        weights = [weight for _, weight in pairs]
    if not values:
        return None
    data = np.asarray(values, float)
    mass = np.ones(len(data)) if weights is None else np.asarray(weights, float)
    p50, p90, p95, p99 = weighted_quantiles(data, mass, (0.5, 0.9, 0.95, 0.99))
    mean = float(np.average(data, weights=mass))
    return Spread(round(float(mass.sum())), mean, float(data.min()), p50, p90, p95, p99, float(data.max()))


def weighted_quantiles(data: np.ndarray, mass: np.ndarray, shares: Sequence[float]) -> list[float]:
    """The smallest value below which at least the share of the mass lies (inverse of the empirical distribution)."""
    order = np.argsort(data, kind="stable")
    cumulative = np.cumsum(mass[order])
    # A hair less than asked, so that floating-point sums do not step past a value that is exactly at the share.
    places = np.searchsorted(cumulative, np.asarray(shares) * cumulative[-1] * (1 - 1e-12))
    return [float(value) for value in data[order][np.minimum(places, len(data) - 1)]]


def wilson(kept: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Confidence interval of a share (Wilson, 1927): sensible for few trials and shares near 1."""
    if count == 0:
        return 0.0, 1.0
    share = kept / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)
