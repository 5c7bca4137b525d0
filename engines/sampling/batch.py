"""One draw for every row of a batch, each by the cheapest way that is exact for it.

greedy                  the likeliest token, already known
no filter               :mod:`wide`: blocks of float32 weights
few candidates          :mod:`narrow`: all such rows together
many, or a close edge   :mod:`wide`: float64 over the whole row

Which way a row goes depends on that row alone, and so does its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engines.sampling import narrow, wide
from engines.sampling.params import SamplingParams
from engines.sampling.philox import Purpose, uniforms
from engines.sampling.thresholds import Logits, min_p_threshold, nucleus_threshold, top_k_threshold

Ints = npt.NDArray[np.int64]

_NARROW = 1024
"""Candidates above which a row is drawn from the whole vocabulary."""
_FEW = 128
"""Rows of up to this many candidates share a matrix, so that one long row does not pad many short ones."""


class Drawn(Protocol):
    """What a draw must know of a sequence."""

    @property
    def index(self) -> int: ...
    @property
    def params(self) -> SamplingParams: ...
    @property
    def greedy(self) -> bool: ...


class _Row:
    """A row on its way to a candidate matrix."""

    __slots__ = ("ids", "logits", "mass", "params", "peak", "row", "uniform")

    def __init__(self, row: int, logits: Logits, peak: np.float32, params: SamplingParams, uniform: float) -> None:
        self.row = row
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

    def _find_candidates(self, scratch: npt.NDArray[np.float32]) -> None:
        """Set ``ids`` (ascending) to a set that holds all that the filters can keep, and ``mass`` where top_p needs it."""
        params, peak = self.params, float(self.peak)
        threshold = np.float32(-np.inf)
        if params.top_k:
            threshold = top_k_threshold(self.logits, params.top_k)
        if params.min_p:
            threshold = max(threshold, min_p_threshold(peak, params.temperature, params.min_p))
        if params.top_p < 1.0 and not params.top_k:
            weights = wide.relative_weights(self.logits, self.peak, params.temperature, scratch)
            self.mass = float(weights.sum())
            if not params.min_p:
                needed = params.top_p * self.mass * (1.0 + 2.0 * narrow.MASS_ERROR)
                threshold = nucleus_threshold(self.logits, weights, peak, params.temperature, needed)
        self.ids = np.flatnonzero(self.logits >= threshold)

    def draw_wide(self) -> int:
        params, peak = self.params, float(self.peak)
        mass = (
            wide.exact_mass(self.logits, peak, params.temperature) if params.top_p < 1.0 and not params.top_k else 0.0
        )
        return int(self.ids[wide.draw_filtered(self.logits[self.ids], peak, params, mass, self.uniform)])


def draw_rows(
    logits: Logits,
    likeliest: Ints,
    states: Sequence[Drawn],
    positions: Sequence[int],
    scratch: npt.NDArray[np.float32],
) -> Ints:
    """Token of each row. ``likeliest`` is the argmax of each; ``scratch`` is as long as a row and holds nothing afterwards."""
    tokens = likeliest.copy()
    random = [row for row, state in enumerate(states) if not state.greedy]
    if not random:
        return tokens
    few: list[_Row] = []
    many: list[_Row] = []
    with np.errstate(over="ignore"):  # a tiny temperature sends every other token's exponent to -inf, which is right
        for row, uniform in zip(random, _uniforms(random, states, positions), strict=True):
            drawn = _Row(row, logits[row], logits[row, likeliest[row]], states[row].params, uniform)
            token = drawn.draw_alone(scratch)
            if token is None:
                (few if drawn.ids.shape[0] <= _FEW else many).append(drawn)
            else:
                tokens[row] = token
        for group in (few, many):
            _draw_narrow(group, tokens)
    return tokens


def _uniforms(rows: Sequence[int], states: Sequence[Drawn], positions: Sequence[int]) -> list[float]:
    numbers: list[float] = uniforms(
        np.array([states[row].params.seed for row in rows], np.uint64),
        np.array([states[row].index for row in rows], np.uint64),
        np.array([positions[row] for row in rows], np.uint64),
        Purpose.TOKEN,
    ).tolist()
    return numbers


def _draw_narrow(rows: Sequence[_Row], tokens: Ints) -> None:
    if not rows:
        return
    drawn, unsure = narrow.draw(_matrix(rows))
    for row, token, again in zip(rows, drawn.tolist(), unsure.tolist(), strict=True):
        tokens[row.row] = row.draw_wide() if again else token


def _matrix(rows: Sequence[_Row]) -> narrow.Candidates:
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
