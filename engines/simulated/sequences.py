"""The sequences that the simulated step runner has been told of, and what it knows their blocks must hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from engines.contract import EngineError, PlanError, Row, SequenceSpec, StepPlan, TokenArray
from engines.simulated.history import History

_REMEMBERED = 1 << 12
"""How many closed ids are kept to catch a reuse."""


class OpenSequence:
    """One open sequence. ``history`` is what its tokens say, whatever its blocks say."""

    __slots__ = ("drawn", "drawn_in", "history", "spec")

    def __init__(self, spec: SequenceSpec, block_size: int) -> None:
        self.spec = spec
        self.history = History(block_size)
        self.drawn: int | None = None
        self.drawn_in = 0
        """Ordinal of the step that drew ``drawn``."""

    def carried(self, ordinal: int) -> int:
        """The token that the step just before number ``ordinal`` drew. Raises PlanError where it drew none."""
        if self.drawn is None or self.drawn_in != ordinal - 1:
            raise PlanError(f"sequence {self.spec.sequence}: tokens=None, but the previous step drew nothing for it")
        return self.drawn

    def carry(self, token: int, ordinal: int) -> None:
        """Step number ``ordinal`` drew ``token`` last."""
        self.drawn, self.drawn_in = token, ordinal

    def learn_prompt(self, length: int) -> None:
        """Extend the history up to ``length`` from the prompt, as far as the prompt goes."""
        known = len(self.history)
        if known < length:
            self.history.extend(self.spec.prompt[known:length])

    def check_tokens(self, row: Row, tokens: TokenArray) -> None:
        """A row's tokens at prompt positions must be the prompt's."""
        expected = self.spec.prompt[row.past : row.past + len(tokens)]
        if expected and tokens[: len(expected)] != expected:
            raise PlanError(f"sequence {row.sequence}: tokens at {row.past} are not the prompt's")


class SequenceTable(Mapping[int, OpenSequence]):
    """Open sequences by id. Checks a plan first, applies it after: a refused plan changes nothing."""

    def __init__(self, vocab_size: int, block_size: int) -> None:
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._open: dict[int, OpenSequence] = {}
        self._closed: deque[int] = deque(maxlen=_REMEMBERED)
        self._closed_set: set[int] = set()

    def __getitem__(self, sequence: int) -> OpenSequence:
        return self._open[sequence]

    def __iter__(self) -> Iterator[int]:
        return iter(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def check(self, plan: StepPlan) -> dict[int, OpenSequence]:
        """The sequences that the plan's rows may name. Raises PlanError."""
        closing = set(plan.closed)
        if len(closing) < len(plan.closed) or not closing <= self._open.keys():
            raise PlanError(f"closed: each must be open and named once, got {sorted(plan.closed)}")
        opening: dict[int, OpenSequence] = {}
        for spec in plan.opened:
            if spec.sequence in self._open or spec.sequence in opening or spec.sequence in self._closed_set:
                raise PlanError(f"opened: sequence ids are never reused, got {spec.sequence} again")
            self._check_prompt(spec)
            opening[spec.sequence] = OpenSequence(spec, self._block_size)
        found: dict[int, OpenSequence] = {}
        for row in plan.rows:
            sequence = opening.get(row.sequence) or self._open.get(row.sequence)
            if sequence is None or row.sequence in closing:
                raise PlanError(f"sequence {row.sequence}: not open")
            if row.sequence in found:
                raise PlanError(f"sequence {row.sequence}: named by two rows")
            found[row.sequence] = sequence
        return {**opening, **found}

    def _check_prompt(self, spec: SequenceSpec) -> None:
        prompt = spec.prompt
        if prompt and (min(prompt) < 0 or max(prompt) >= self._vocab_size):
            raise PlanError(
                f"sequence {spec.sequence}: prompt ids must be 0 .. {self._vocab_size - 1}, "
                f"got {min(prompt)} .. {max(prompt)}"
            )

    def apply(self, plan: StepPlan, checked: dict[int, OpenSequence]) -> None:
        for sequence in plan.closed:
            del self._open[sequence]
            if len(self._closed) == _REMEMBERED:
                self._closed_set.discard(self._closed[0])
            self._closed.append(sequence)
            self._closed_set.add(sequence)
        for spec in plan.opened:
            self._open[spec.sequence] = checked[spec.sequence]

    def check_integrity(self) -> None:
        """Raises EngineError where a sequence is open and closed, or its history is not what its own tokens give."""
        both = self._open.keys() & self._closed_set
        if both or len(self._closed) != len(self._closed_set):
            raise EngineError(f"sequences open and closed at once: {sorted(both)}")
        for number, sequence in self._open.items():
            history = sequence.history
            if history.state != History(self._block_size, history.tokens).state:
                raise EngineError(f"sequence {number}: its state is not that of its {len(history)} tokens")
