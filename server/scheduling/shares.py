"""The classes' minimum shares of the engine's tokens: who is served first, and when somebody else is owed."""

from __future__ import annotations

from collections.abc import Sequence

from server.engine import PriorityClass

_LEVELS = tuple(int(level) for level in PriorityClass)


class ClassShares:
    """Classes go in their order, but whoever has got less than its share while it had work goes before the others.

    For each class an account in tokens: while the class has work, every step adds its share of the step's tokens and takes off what it
    was served; a class without work is owed nothing. The account is kept within ``bound`` both ways, so that neither an old debt
    nor an old gift lasts: over any span in which a class always has work it gets at least share * tokens - 2 * bound.
    Engine thread only.
    """

    __slots__ = ("_bound", "_owed", "_shares", "order")

    def __init__(self, shares: tuple[float, float, float], bound: int) -> None:
        """``shares`` by class, each in [0, 1), together below 1. Raises ValueError."""
        if any(not 0.0 <= share < 1.0 for share in shares) or sum(shares) >= 1.0:
            raise ValueError(f"the classes' shares must be in [0, 1) and together below 1, not {shares}")
        self._shares = shares
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
                account = owed[level] + self._shares[level] * total - tokens[level]
                owed[level] = min(bound, max(-bound, account))
            else:
                owed[level] = 0.0
        if any(account > 0.0 for account in owed):
            self.order = tuple(sorted(_LEVELS, key=lambda level: (owed[level] <= 0.0, level)))
        else:
            self.order = _LEVELS
