"""What restricts a sequence's next token: a grammar, a choice, a ban. The sampler owns the object while the sequence is open."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class Constraint(Protocol):
    """State over the tokens of one sequence. Called on the engine thread only."""

    def mask(self, allowed: npt.NDArray[np.bool_]) -> None:
        """Write into ``allowed`` [vocabulary], all True on entry, which tokens may come next. At least one must stay True."""
        ...

    def advance(self, token: int) -> None:
        """The sequence grew by ``token``."""
        ...

    def rollback(self, count: int) -> None:
        """The last ``count`` tokens did not stand (speculation)."""
        ...
