"""What restricts a sequence's next token to a grammar. The sampler owns the object while the sequence is open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engines.sampling.params import Guide

Masks = npt.NDArray[np.bool_]
"""[constraints, vocabulary]: True where a token may come next."""


class Constraint(Protocol):
    """State over the tokens of one sequence. Called on the engine thread only."""

    def advance(self, token: int) -> None:
        """The sequence grew by ``token``."""
        ...

    def rollback(self, count: int) -> None:
        """The last ``count`` tokens did not stand (speculation)."""
        ...


class Constraints(Protocol):
    """Makes constraints of guides, and fills the masks of a whole step together, so that they can be filled in parallel."""

    def open(self, guide: Guide) -> Constraint:
        """A fresh one. Raises GuideError for a guide that does not compile; what was admitted does."""
        ...

    def fill(self, constraints: Sequence[Constraint]) -> Masks:
        """Which tokens may come next. A row without True: nothing may, and the sequence is stuck."""
        ...


class GuideError(ValueError):
    """A guide that cannot be compiled. The text is for the client who wrote it."""
