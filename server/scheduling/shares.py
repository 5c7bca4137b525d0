"""The classes' minimum shares of the engine's tokens: who is served first, and when somebody else is owed."""

from __future__ import annotations

from collections.abc import Sequence

from server.engine import PriorityClass

_LEVELS = tuple(int(level) for level in PriorityClass)
_LEAD = 1 / 64
"""Part of its share that a class is granted beyond it. Work comes in whole chunks, so an account that grants the share itself has a class
about a chunk ahead or behind whenever one looks; with the lead that is made up for, and a minimum is a minimum."""


class ClassShares:
    """Classes go in their order, but whoever has got less than its share while it had work goes before the others.

    For each class an account in tokens: while the class has work, every step adds its share of the step's tokens, and a 64th of that, and
    takes off what it was served; a class without work is owed nothing. The account is kept within ``bound`` both ways, so that neither an
    old debt nor an old gift lasts: over any span in which a class always has work, and can be seated when it is owed, it gets at least
    (1 + 1/64) * share * tokens - 2 * bound, so its whole share of any span of more than 128 * bound / share tokens. Engine thread only.
    """

    __slots__ = ("_bound", "_granted", "_owed", "order")

    def __init__(self, shares: tuple[float, float, float], bound: int) -> None:
        """``shares`` by class, each in [0, 1), together below 1. Raises ValueError."""
        if any(not 0.0 <= share < 1.0 for share in shares) or sum(shares) >= 1.0:
            raise ValueError(f"the classes' shares must be in [0, 1) and together below 1, not {shares}")
        # All together stay below 1, or who is owed next would be told by the class alone.
        lead = min(_LEAD, (1.0 - sum(shares)) / 2)
        self._granted = tuple(share * (1.0 + lead) for share in shares)
        self._bound = float(bound)
        self._owed = [0.0] * len(shares)
        self.order: tuple[int, ...] = _LEVELS
        """Classes, whom to serve first first."""

    def is_owed(self, level: int) -> bool:
        """Whether the class goes first for its share's sake."""
        return self._owed[level] > 0.0

    def serve(self, tokens: Sequence[int], has_work: Sequence[bool]) -> None:
        """``tokens`` went to each class, of whom some have more to do."""
        owed, bound, total = self._owed, self._bound, sum(tokens)
        for level in _LEVELS:
            if has_work[level]:
                account = owed[level] + self._granted[level] * total - tokens[level]
                owed[level] = min(bound, max(-bound, account))
            else:
                owed[level] = 0.0
        if any(account > 0.0 for account in owed):
            self.order = tuple(sorted(_LEVELS, key=lambda level: (owed[level] <= 0.0, level)))
        else:
            self.order = _LEVELS
