"""Tokens that must not come next: endings too early, runs that came before, runs that a client forbade.

Each ban looks at the last few tokens only, or keeps an index of the runs so far: a draw costs the same however long the text is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from engines.sampling.thresholds import Logits


class EarlyEndings:
    """No ending before the output has so many tokens."""

    def __init__(self, min_tokens: int, ending_ids: Sequence[int]) -> None:
        self._left = min_tokens
        self._ids = np.array(ending_ids, np.int64)

    def apply(self, row: Logits) -> None:
        if self._left > 0:
            row[self._ids] = -np.inf

    def advance(self, token: int) -> None:  # noqa: ARG002 - any token counts
        self._left -= 1

    def rollback(self, count: int) -> None:
        self._left += count


class RepeatedNgrams:
    """No run of ``size`` tokens twice, over prompt and output."""

    def __init__(self, size: int, prompt: Sequence[int]) -> None:
        self._before = size - 1
        self._tokens: list[int] = []
        self._followers: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        """Run of size - 1 tokens -> every token that has followed it."""
        for token in prompt:
            self.advance(token)

    def apply(self, row: Logits) -> None:
        if len(self._tokens) < self._before:
            return
        followers = self._followers.get(self._last())
        if followers:
            row[followers] = -np.inf

    def advance(self, token: int) -> None:
        if len(self._tokens) >= self._before:
            self._followers[self._last()].append(token)
        self._tokens.append(token)

    def rollback(self, count: int) -> None:
        for _ in range(count):
            self._tokens.pop()
            if len(self._tokens) >= self._before:
                self._followers[self._last()].pop()

    def _last(self) -> tuple[int, ...]:
        return tuple(self._tokens[len(self._tokens) - self._before :])


class BadTokens:
    """Runs of tokens that must not come; a run may begin in the prompt, its last token never comes."""

    def __init__(self, runs: Sequence[Sequence[int]], prompt: Sequence[int]) -> None:
        self._always = np.array(sorted({run[0] for run in runs if len(run) == 1}), np.int64)
        self._runs = [(tuple(run[:-1]), run[-1]) for run in runs if len(run) > 1]
        longest = max((len(before) for before, _ in self._runs), default=0)
        self._tokens: list[int] = list(prompt[len(prompt) - longest :]) if longest else []

    def apply(self, row: Logits) -> None:
        if len(self._always):
            row[self._always] = -np.inf
        tokens = self._tokens
        for before, last in self._runs:
            if tuple(tokens[-len(before) :]) == before:
                row[last] = -np.inf

    def advance(self, token: int) -> None:
        self._tokens.append(token)

    def rollback(self, count: int) -> None:
        del self._tokens[len(self._tokens) - count :]
