"""A row of logits that is no distribution must never become a token."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np
import numpy.typing as npt

from engines.contract import StepError


def require_distributions(peaks: npt.NDArray[np.float32], sequences: Sequence[int]) -> None:
    """``peaks`` are the rows' greatest logits as ``argmax`` finds them: NaN where a row holds any. Raises StepError.

    -inf says that a token is impossible, and is allowed as long as another is not.
    """
    for row, peak in enumerate(peaks.tolist()):
        if not isfinite(peak):
            raise StepError(f"sequence {sequences[row]}: the greatest logit of row {row} must be finite, got {peak}")
