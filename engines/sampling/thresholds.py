"""Where to cut a row of logits so that few candidates are left and none that matters is lost. No sort, no partition of the vocabulary.

Every function returns a logit t such that the tokens with logit >= t contain all that a filter can keep. Exactness is not theirs:
whoever reads the candidates applies the filters to them, and notices where they do not reach.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]

_WIDEST_FAN = 64
_BLOCKS_PER_K = 8
_LEVELS = (-6.0, -10.0, -16.0, -24.0)
"""Natural logarithms of weights relative to the likeliest token's: how far below it the nucleus is sought, nearest first."""


def top_k_threshold(row: Logits, k: int) -> np.float32:
    """The k-th greatest of block maxima: at least k logits are as great, and seldom many more.

    Blocks are strided (column j of a [fan, blocks] view), which NumPy reduces at memory speed; their number is a small multiple of k,
    so that two of the top k seldom share one.
    """
    size = row.shape[0]
    if k >= size:
        return np.float32(-np.inf)
    fan = max(1, min(_WIDEST_FAN, size // (_BLOCKS_PER_K * k)))
    blocks = size // fan
    maxima = row if fan == 1 else row[: fan * blocks].reshape(fan, blocks).max(axis=0)
    threshold: np.float32 = np.partition(maxima, blocks - k)[blocks - k]
    return threshold


def min_p_threshold(peak: float, temperature: float, min_p: float) -> np.float32:
    """A little below the logit at which the weight relative to ``peak`` is ``min_p``: rounding to float32 must lose no token."""
    edge = peak + temperature * math.log(min_p)
    return np.float32(edge - 1e-6 * (abs(edge) + abs(peak)) - 1e-30)


def nucleus_threshold(
    row: Logits, weights: npt.NDArray[np.float32], peak: float, temperature: float, mass: float
) -> np.float32:
    """The nearest of a few fixed distances below ``peak`` within which the weights sum to at least ``mass``, as float32 sums."""
    for level in _LEVELS:
        threshold = np.float32(peak + temperature * level)
        if float(np.dot(weights, row >= threshold)) >= mass:
            return threshold
    return np.float32(-np.inf)
