"""Logits moved by what was said before: biases and the three penalties.

Work per draw is in proportion to the *different* tokens seen, never to the length of the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from engines.sampling.params import FORBID, SamplingParams
from engines.sampling.thresholds import Logits


class Bias:
    """Adds a fixed number to some logits. Stateless."""

    def __init__(self, pairs: Sequence[tuple[int, float]]) -> None:
        self._ids = np.array([token for token, _ in pairs], np.int64)
        self._values = np.array([-np.inf if value <= FORBID else value for _, value in pairs], np.float32)

    def apply(self, row: Logits) -> None:
        row[self._ids] += self._values

    def advance(self, token: int) -> None:
        """Nothing to remember."""

    def rollback(self, count: int) -> None:
        """Nothing to forget."""


class Penalties:
    """Repetition over prompt and output, presence and frequency over the output alone."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int]) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._prompt = frozenset(prompt) if params.repetition_penalty != 1.0 else frozenset()
        self._output: list[int] = []
        self._counts: Counter[int] = Counter()
        self._slots: dict[int, int] = {}
        self._ids = np.empty(64, np.int64)
        self._times = np.empty(64, np.float32)
        """Parallel to ``_ids``: how often the output holds each; 0 for tokens of the prompt alone."""
        for token in sorted(self._prompt):
            self._slot(token)

    def apply(self, row: Logits) -> None:
        size = len(self._slots)
        if not size:
            return
        ids, times = self._ids[:size], self._times[:size]
        values = row[ids]
        if self._repetition != 1.0:
            values = np.where(values > 0, values / self._repetition, values * self._repetition)
        values -= self._frequency * times
        values -= self._presence * (times > 0)
        row[ids] = values

    def advance(self, token: int) -> None:
        self._output.append(token)
        self._count(token, 1)

    def rollback(self, count: int) -> None:
        for _ in range(count):
            self._count(self._output.pop(), -1)

    def _count(self, token: int, by: int) -> None:
        self._counts[token] += by
        self._times[self._slot(token)] = self._counts[token]
        if not self._counts[token] and token not in self._prompt:
            self._drop(token)

    def _slot(self, token: int) -> int:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self._slots)
            if slot == len(self._ids):
                self._ids, self._times = np.resize(self._ids, 2 * slot), np.resize(self._times, 2 * slot)
            self._ids[slot], self._times[slot] = token, 0.0
        return slot

    def _drop(self, token: int) -> None:
        """A rolled back token is as if never said: the last slot takes its place."""
        slot, last = self._slots.pop(token), len(self._slots)
        del self._counts[token]
        if slot != last:
            moved = int(self._ids[last])
            self._slots[moved] = slot
            self._ids[slot], self._times[slot] = self._ids[last], self._times[last]
