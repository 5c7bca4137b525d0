"""The sampler: logits in, tokens and log-probabilities out, with what each open sequence needs to know in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engines.contract import PlanError, SequenceSpec, StepError
from engines.sampling.batch import RandomRow, draw_rows
from engines.sampling.checks import require_distributions
from engines.sampling.constraint import Constraint, Constraints, GuideError
from engines.sampling.draw_numbers import take
from engines.sampling.logprobs import Top, log_normaliser, top_logprobs
from engines.sampling.sequence_state import SequenceState
from engines.sampling.thresholds import Logits

NO_TOKEN = -1
"""Stands where nothing may come: everything is forbidden."""


@dataclass(frozen=True)
class Draws:
    """One entry a row."""

    tokens: list[int]
    """NO_TOKEN where bans and guide leave no token."""
    logprobs: dict[int, tuple[float, Top]]
    """Row -> (the token's log-probability, the likeliest beside it), only for rows whose sequence asks for them."""


class Sampler:
    """Holds the open sequences. For one thread, the engine thread.

    A draw is a function of (seed, sequence index, position, purpose), of the sequence's own tokens and of the row's logits alone: the
    same row gives the same token, bit for bit, whatever other rows are drawn with it.
    """

    def __init__(self, vocab_size: int, constraints: Constraints | None = None) -> None:
        """``constraints``: what makes constraints of guides; None refuses guides."""
        self._vocab_size = vocab_size
        self._constraints = constraints
        self._sequences: dict[int, SequenceState] = {}
        self._scratch = np.empty(vocab_size, np.float32)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._sequences

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def guides(self) -> bool:
        """Whether guided sequences can be opened."""
        return self._constraints is not None

    def open(self, spec: SequenceSpec) -> None:
        """Raises PlanError where the sequence is open already, or its guide cannot be had."""
        if spec.sequence in self._sequences:
            raise PlanError(f"opened: sequence {spec.sequence} is open already")
        self._sequences[spec.sequence] = SequenceState(spec, self._constraint(spec))

    def _constraint(self, spec: SequenceSpec) -> Constraint | None:
        guide = spec.sampling.guide
        if guide is None:
            return None
        if self._constraints is None:
            raise PlanError(f"opened: sequence {spec.sequence} has a guide, and this sampler takes none")
        try:
            return self._constraints.open(guide)
        except GuideError as error:
            raise PlanError(f"opened: the guide of sequence {spec.sequence} {error}") from error

    def close(self, sequence: int) -> None:
        """Forget a sequence. Raises PlanError where it is not open."""
        if self._sequences.pop(sequence, None) is None:
            raise PlanError(f"closed: sequence {sequence} is not open")

    def draw(self, logits: Logits, sequences: Sequence[int], positions: Sequence[int]) -> Draws:
        """Draw the token at ``positions[i]`` of ``sequences[i]`` from row i of ``logits`` [R, vocabulary].

        A position counts the sequence's tokens before it, prompt included. Penalties, bans and guides are taken as they stand before
        any token of the call, so a sequence that has them may have one row a call.
        Raises StepError for a row that is no distribution.
        """
        states = [self._sequences[sequence] for sequence in sequences]
        likeliest = logits.argmax(axis=1)
        require_distributions(logits[np.arange(len(states)), likeliest], sequences)
        tokens: list[int] = likeliest.tolist()
        if all(state.plain for state in states):
            return Draws(tokens, {})
        rows = self._shape(logits, states, tokens)
        self._draw_random(rows, states, positions, tokens)
        for token, state in zip(tokens, states, strict=True):
            if state.shaped and token != NO_TOKEN:
                state.advance(token)
        asked = {
            row: state.params.logprobs
            for row, state in enumerate(states)
            if state.params.logprobs is not None and tokens[row] != NO_TOKEN
        }
        return Draws(tokens, {row: self._logprob(logits[row], tokens[row], top) for row, top in asked.items()})

    def _shape(self, logits: Logits, states: Sequence[SequenceState], tokens: list[int]) -> dict[int, Logits]:
        """Copies of the rows that their sequences change, changed; ``tokens`` then holds the likeliest of what is left."""
        rows = {place: logits[place].copy() for place, state in enumerate(states) if state.shaped}
        for place, row in rows.items():
            for shaper in states[place].shapers:
                shaper.apply(row)
        self._mask(rows, states)
        for place, row in rows.items():
            best = int(row.argmax())
            tokens[place] = best if np.isfinite(row[best]) else NO_TOKEN
        return {place: rows.get(place, logits[place]) for place in range(len(states))}

    def _mask(self, rows: dict[int, Logits], states: Sequence[SequenceState]) -> None:
        """All guided rows of a step at once."""
        guided = [(place, states[place].constraint) for place in rows]
        constrained = [(place, constraint) for place, constraint in guided if constraint is not None]
        if not constrained or self._constraints is None:
            return
        masks = self._constraints.fill([constraint for _, constraint in constrained])
        for (place, _), allowed in zip(constrained, masks, strict=True):
            np.putmask(rows[place], ~allowed, -np.inf)

    def _draw_random(
        self, logits: dict[int, Logits], states: Sequence[SequenceState], positions: Sequence[int], tokens: list[int]
    ) -> None:
        """Put a drawn token in the place of the likeliest one, wherever the sequence is not greedy."""
        places = [place for place, state in enumerate(states) if not state.greedy and tokens[place] != NO_TOKEN]
        if not places:
            return
        numbers = take([states[place].numbers for place in places], [positions[place] for place in places])
        rows = [
            RandomRow(logits[place], logits[place][tokens[place]], states[place].params, number)
            for place, number in zip(places, numbers, strict=True)
        ]
        for place, token in zip(places, draw_rows(rows, self._scratch), strict=True):
            tokens[place] = token

    def score(
        self, sequence: int, logits: Logits, targets: Sequence[int], top: int = 0
    ) -> tuple[list[float], list[Top]]:
        """Log-probability of ``targets[i]`` in row i of ``logits``, and the ``top`` likeliest tokens of each row."""
        require_distributions(logits.max(axis=1), [sequence] * len(targets))
        scored = [self._logprob(logits[row], target, top) for row, target in enumerate(targets)]
        return [logprob for logprob, _ in scored], [likeliest for _, likeliest in scored]

    def _logprob(self, row: Logits, token: int, top: int) -> tuple[float, Top]:
        normaliser = log_normaliser(row, self._scratch)
        return float(row[token]) - normaliser, top_logprobs(row, top, normaliser)

    def check_integrity(self) -> None:
        """Raises StepError where kept parameters are none that the server may let through."""
        for sequence, state in self._sequences.items():
            params = state.params
            if params.temperature < 0 or params.top_k < 0 or not 0 < params.top_p <= 1 or not 0 <= params.min_p <= 1:
                raise StepError(f"sequence {sequence} holds impossible sampling parameters: {params}")
