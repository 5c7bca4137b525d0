"""From states to tokens and log-probabilities: the seam between the simulated model and sampling.

Two ways to draw. *Tokens*: the likeliest token, or, with a temperature, one hashed from (state, seed, index, position); O(1) a draw.
Filters do not act on it; a sequence with penalties, bans or a guide is drawn the other way.
*Logits*: a whole row of logits and the real sampler, so that every sampling parameter acts. Greedy draws agree between the two, and
log-probabilities come from the row in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from engines.contract import SequenceSpec
from engines.sampling.constraint import Constraints
from engines.sampling.logprobs import Top
from engines.sampling.sampler import Sampler
from engines.simulated.hashing import Words, combine
from engines.simulated.language import Language


class Draw(NamedTuple):
    """One token to draw: for whom, the state that it follows, and the position that it will stand at."""

    spec: SequenceSpec
    state: int
    position: int


class Drawn(NamedTuple):
    token: int
    """NO_TOKEN where bans and guide leave none."""
    logprob: float | None = None
    """None where the sequence did not ask."""
    top: Top = ()


class Drawer(Protocol):
    """Draws and scores. One thread."""

    @property
    def guides(self) -> bool:
        """Whether guided sequences can be opened."""
        ...

    def open(self, spec: SequenceSpec) -> None: ...

    def close(self, sequence: int) -> None: ...

    def draw(self, draws: Sequence[Draw]) -> list[Drawn]: ...

    def score(self, sequence: int, states: Words, targets: Sequence[int], top: int) -> tuple[list[float], list[Top]]:
        """Log-probabilities of ``targets[i]`` after ``states[i]``, and the ``top`` likeliest tokens there."""
        ...


class LogitDrawer:
    """A row of logits for every draw, and engines.sampling's sampler: every sampling parameter acts as on a real engine."""

    def __init__(self, language: Language, constraints: Constraints | None = None) -> None:
        self._language = language
        self._sampler = Sampler(language.vocab_size, constraints)

    @property
    def guides(self) -> bool:
        return self._sampler.guides

    def knows(self, sequence: int) -> bool:
        return sequence in self._sampler

    def open(self, spec: SequenceSpec) -> None:
        self._sampler.open(spec)

    def close(self, sequence: int) -> None:
        self._sampler.close(sequence)

    def draw(self, draws: Sequence[Draw]) -> list[Drawn]:
        rows = self._language.logits(np.array([draw.state for draw in draws], dtype=np.uint64))
        sequences = [draw.spec.sequence for draw in draws]
        result = self._sampler.draw(rows, sequences, [draw.position for draw in draws])
        asked = {row: Drawn(result.tokens[row], logprob, top) for row, (logprob, top) in result.logprobs.items()}
        return [asked.get(row) or Drawn(token) for row, token in enumerate(result.tokens)]

    def score(self, sequence: int, states: Words, targets: Sequence[int], top: int) -> tuple[list[float], list[Top]]:
        return self._sampler.score(sequence, self._language.logits(states), targets, top)


class TokenDrawer:
    """Draws by hash alone; a row of logits is made only where log-probabilities are asked for, or where a sequence's penalties, bans
    or guide must act on one."""

    def __init__(self, language: Language, constraints: Constraints | None = None) -> None:
        self._language = language
        self._by_logits = LogitDrawer(language, constraints)

    @property
    def guides(self) -> bool:
        return self._by_logits.guides

    def open(self, spec: SequenceSpec) -> None:
        if spec.sampling.shapes:
            self._by_logits.open(spec)

    def close(self, sequence: int) -> None:
        if self._by_logits.knows(sequence):
            self._by_logits.close(sequence)

    def draw(self, draws: Sequence[Draw]) -> list[Drawn]:
        shaped = [at for at, draw in enumerate(draws) if draw.spec.sampling.shapes]
        if not shaped:
            return self._draw_hashed(draws)
        drawn = iter(self._by_logits.draw([draws[at] for at in shaped]))
        rest = iter(self._draw_hashed([draw for draw in draws if not draw.spec.sampling.shapes]))
        return [next(drawn if draw.spec.sampling.shapes else rest) for draw in draws]

    def _draw_hashed(self, draws: Sequence[Draw]) -> list[Drawn]:
        states = np.array([hashed_state(draw) for draw in draws], dtype=np.uint64)
        tokens = self._language.likeliest_of(states).tolist()
        drawn = [Drawn(token) for token in tokens]
        for at, draw in enumerate(draws):
            asked = draw.spec.sampling.logprobs
            if asked is not None:
                state = np.array([draw.state], dtype=np.uint64)
                logprobs, tops = self.score(draw.spec.sequence, state, tokens[at : at + 1], asked)
                drawn[at] = Drawn(tokens[at], logprobs[0], tops[0])
        return drawn

    def score(self, sequence: int, states: Words, targets: Sequence[int], top: int) -> tuple[list[float], list[Top]]:
        return self._by_logits.score(sequence, states, targets, top)


def hashed_state(draw: Draw) -> int:
    """The state whose likeliest token is what an unshaped draw gives: its own where greedy, else one hashed with seed and place."""
    sampling = draw.spec.sampling
    if sampling.temperature == 0.0 or sampling.top_k == 1:
        return draw.state
    return combine(draw.state, sampling.seed, draw.spec.index, draw.position)
