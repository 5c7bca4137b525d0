"""Log-probabilities of the model's own distribution: before temperature, filters, penalties and masks.

Natural logarithms, accurate to about 1e-6: exponentials in float32, sums pairwise. A row's value does not depend on its mates.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from engines.sampling.thresholds import Logits, top_k_threshold

Top = tuple[tuple[int, float], ...]
"""(token, log-probability), best first, the lower id first among equals."""


def log_normaliser(row: Logits, scratch: npt.NDArray[np.float32]) -> float:
    """log(sum(exp(row))), the peak taken out first. ``scratch`` is as long as the row."""
    peak = row.max()
    np.subtract(row, peak, out=scratch)
    np.exp(scratch, out=scratch)
    return float(peak) + math.log(float(scratch.sum()))


def top_logprobs(row: Logits, count: int, normaliser: float) -> Top:
    """The ``count`` likeliest tokens."""
    if count <= 0:
        return ()
    ids = np.flatnonzero(row >= top_k_threshold(row, count))
    best = ids[np.argsort(-row[ids], kind="stable")[:count]]
    return tuple((int(token), float(row[token]) - normaliser) for token in best)
