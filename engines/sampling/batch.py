"""One draw for each of a batch's rows, every row by the cheapest way that is exact for it.

no filter               :mod:`wide`: blocks of float32 weights
few candidates          :mod:`narrow`: all such rows together
many, or a close edge   :mod:`wide`: float64 over the candidates

Which way a row goes depends on that row alone, and so does its result. Greedy rows never come here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engines.sampling import narrow, wide
from engines.sampling.params import SamplingParams
from engines.sampling.thresholds import Logits, min_p_threshold, nucleus_threshold, top_k_threshold

_NARROW = 1024
"""Candidates above which a row is drawn by itself."""
_FEW = 128
"""Rows of up to this many candidates share a matrix, so that one long row does not pad many short ones."""


class RandomRow:
    """A row whose token is to be drawn at ``uniform`` in [0, 1)."""

    __slots__ = ("ids", "logits", "mass", "params", "peak", "uniform")

    def __init__(self, logits: Logits, peak: np.float32, params: SamplingParams, uniform: float) -> None:
        """``peak`` is the greatest logit, finite; the temperature is above 0."""
        self.logits = logits
        self.peak = peak
        self.params = params
        self.uniform = uniform
        self.mass = 0.0
        self.ids = np.empty(0, np.int64)

    def draw_alone(self, scratch: npt.NDArray[np.float32]) -> int | None:
        """The row's token; None, with ``ids`` found, where the row should be drawn in a candidate matrix."""
        params = self.params
        if not (params.top_k or params.top_p < 1.0 or params.min_p):
            weights = wide.relative_weights(self.logits, self.peak, params.temperature, scratch)
            return wide.draw_by_blocks(weights, self.uniform)
        self._find_candidates(scratch)
        return self.draw_wide() if self.ids.shape[0] > _NARROW else None

    def draw_wide(self) -> int:
        params, peak = self.params, float(self.peak)
        if params.top_p < 1.0 and not params.top_k:
            return wide.draw_filtered(self.logits, peak, params, self.uniform)
        return int(self.ids[wide.draw_filtered(self.logits[self.ids], peak, params, self.uniform)])

    def _find_candidates(self, scratch: npt.NDArray[np.float32]) -> None:
        """Set ``ids`` (ascending) to a set that holds all that the filters can keep, and ``mass`` where top_p needs it."""
        params, peak = self.params, float(self.peak)
        threshold = np.float32(-np.inf)
        if params.top_k:
            threshold = top_k_threshold(self.logits, params.top_k)
        if params.min_p and not (params.top_k and params.top_p < 1.0):  # there top_p needs the mass of all the top k
            threshold = max(threshold, min_p_threshold(peak, params.temperature, params.min_p))
        if params.top_p < 1.0 and not params.top_k:
            weights = wide.relative_weights(self.logits, self.peak, params.temperature, scratch)
            self.mass = float(weights.sum())
            if not params.min_p:
                needed = params.top_p * self.mass * (1.0 + 2.0 * narrow.MASS_ERROR)
                threshold = nucleus_threshold(self.logits, weights, peak, params.temperature, needed)
        self.ids = np.flatnonzero(self.logits >= threshold)


def draw_rows(rows: Sequence[RandomRow], scratch: npt.NDArray[np.float32]) -> list[int]:
    """Token of each row. ``scratch`` is as long as a row's logits and holds nothing afterwards."""
    tokens = [0] * len(rows)
    few: list[int] = []
    many: list[int] = []
    with np.errstate(over="ignore"):  # a tiny temperature sends every other token's exponent to -inf, which is right
        for place, row in enumerate(rows):
            token = row.draw_alone(scratch)
            if token is None:
                (few if row.ids.shape[0] <= _FEW else many).append(place)
            else:
                tokens[place] = token
        for places in (few, many):
            for place, token in zip(places, _draw_narrow([rows[place] for place in places]), strict=True):
                tokens[place] = token
    return tokens


def _draw_narrow(rows: Sequence[RandomRow]) -> Iterable[int]:
    if not rows:
        return ()
    tokens, unsure = narrow.draw(_matrix(rows))
    return [row.draw_wide() if again else token for row, token, again in zip(rows, tokens, unsure, strict=True)]


def _matrix(rows: Sequence[RandomRow]) -> narrow.Candidates:
    counts = np.array([row.ids.shape[0] for row in rows], np.int64)
    shape = (len(rows), int(counts.max()))
    values, ids = np.full(shape, -np.inf, np.float32), np.zeros(shape, np.int64)
    for place, row in enumerate(rows):
        count = row.ids.shape[0]
        ids[place, :count] = row.ids
        np.take(row.logits, row.ids, out=values[place, :count])
    return narrow.Candidates(
        values=values,
        ids=ids,
        counts=counts,
        peaks=np.array([row.peak for row in rows], np.float64),
        temperatures=np.array([row.params.temperature for row in rows], np.float64),
        top_k=np.array([row.params.top_k for row in rows], np.int64),
        top_p=np.array([row.params.top_p for row in rows], np.float64),
        min_p=np.array([row.params.min_p for row in rows], np.float64),
        masses=np.array([row.mass for row in rows], np.float64),
        uniforms=np.array([row.uniform for row in rows], np.float64),
    )
