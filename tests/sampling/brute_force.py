"""The definition of a draw, written for reading: float64, one full sort, no threshold anywhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engines.sampling.params import SamplingParams

Floats = npt.NDArray[np.float64]


def kept_weights(row: npt.NDArray[np.float32], params: SamplingParams) -> Floats:
    """Weights in the order of ids; 0 = filtered out."""
    with np.errstate(over="ignore"):
        weights = np.exp((row.astype(np.float64) - float(row.max())) / params.temperature)
    order = np.array(sorted(range(len(row)), key=lambda token: (-row[token], token)))
    order = order[: params.top_k or None]
    if params.top_p < 1.0:
        cumulative = np.cumsum(weights[order])
        order = order[: int(np.searchsorted(cumulative, params.top_p * cumulative[-1], side="left")) + 1]
    order = order[weights[order] >= params.min_p]
    kept = np.zeros_like(weights)
    kept[order] = weights[order]
    return kept


def nearest_edge(row: npt.NDArray[np.float32], params: SamplingParams) -> float:
    """How near, relative to the mass, the nucleus comes to ending one token sooner or later: below rounding it is undefined."""
    if params.top_p >= 1.0:
        return 1.0
    unbounded = SamplingParams(temperature=params.temperature, top_k=params.top_k)
    ordered = np.sort(kept_weights(row, unbounded))[::-1]
    cumulative = np.cumsum(ordered)
    return float(np.abs(cumulative / cumulative[-1] - params.top_p).min())
