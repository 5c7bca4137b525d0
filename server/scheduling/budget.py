"""How much of prompts a step computes beside those who stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from server.scheduling.cost import StepCost

_NEGLIGIBLE = 0.02
"""Of the whole allowance: what is left below this is not worth another row."""

_PATIENCE = 16
"""Streams that may be held up for one prompt's sake: where fewer stream for each that waits, its work counts so much more."""


class Allowance(Protocol):
    """One step's, used up by the chunks that are cut. Engine thread only."""

    def most(self, past: int, part: float) -> int:
        """Tokens after ``past`` that still fit, of at most ``part`` of the whole allowance. At least 1 until it is spent."""
        ...

    def spend(self, past: int, tokens: int) -> None: ...

    @property
    def spent(self) -> bool:
        """Nothing worth mentioning is left."""
        ...


class StepBudget(Protocol):
    def allowance(self, decodes: int, context: int, prompts: int, tokens: int) -> Allowance:
        """For a step with so many decodes over so many tokens of context, while so many prompts with so many tokens left are seated or
        wait. Gives at least something, so that prompts move."""
        ...


class TokenAllowance:
    """So many tokens, whatever they cost."""

    __slots__ = ("_left", "_total")

    def __init__(self, tokens: int) -> None:
        self._total = self._left = tokens

    def most(self, past: int, part: float) -> int:  # noqa: ARG002
        return max(1, min(self._left, round(part * self._total)))

    def spend(self, past: int, tokens: int) -> None:  # noqa: ARG002
        self._left -= tokens

    @property
    def spent(self) -> bool:
        return self._left <= 0


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """``total`` tokens a step; prompts get what decodes leave, and never less than ``floor``."""

    total: int
    floor: int

    def allowance(self, decodes: int, context: int, prompts: int, tokens: int) -> Allowance:  # noqa: ARG002
        return TokenAllowance(max(self.total - decodes, self.floor))


class TimeAllowance:
    """So many seconds by the cost model, never more than ``tokens``, and ``floor`` tokens whatever they cost."""

    __slots__ = ("_cost", "_floor", "_left", "_tokens", "_total")

    def __init__(self, cost: StepCost, seconds: float, *, tokens: int, floor: int) -> None:
        self._cost = cost
        self._total = self._left = seconds
        self._tokens = tokens
        self._floor = floor

    def most(self, past: int, part: float) -> int:
        affordable = self._cost.chunk(min(self._left, part * self._total), past)
        return max(1, min(self._tokens, max(self._floor, affordable)))

    def spend(self, past: int, tokens: int) -> None:
        self._left -= self._cost.prompt_seconds(tokens, past)
        self._tokens -= tokens
        self._floor -= tokens

    @property
    def spent(self) -> bool:
        return self._tokens <= 0 or (self._floor <= 0 and self._left <= _NEGLIGIBLE * self._total)


class Pace:
    """How long a step may take while others stream, in seconds.

    ``target``, or ``stretch`` times what the step takes without prompts where that alone comes near the target: a slow engine with many
    streams must still let prompts in. Where the prompts ahead would at this pace not be through within ``due`` seconds, the step
    grows until they would be, up to ``limit``: what every step costs anyway is then paid less often, so that all of them, streams
    included, are through sooner. The fewer stream for each prompt that waits, the earlier it does.
    Where only prompts of ``long`` tokens and more are ahead and many stream, a step takes no more than the stretch: slower streams hold
    their seats longer, and nobody waits for a document's first word as others do.
    """

    __slots__ = ("_cost", "_due", "_limit", "_long", "_stretch", "_target")

    def __init__(
        self, cost: StepCost, *, target: float, stretch: float, limit: float, due: float, long: int = 1 << 30
    ) -> None:
        self._cost = cost
        self._long = long
        self._target = target
        self._stretch = stretch
        self._limit = limit
        self._due = due

    def step(self, alone: float, streams: int, prompts: int, tokens: int) -> float:
        """Of a step that takes ``alone`` for so many streams, while so many prompts with so many tokens are ahead. O(1); any thread."""
        step = self._stretch * alone
        if step < self._target and (tokens < prompts * self._long or streams <= _PATIENCE * prompts):
            step = self._target
        # Of the prompts ahead only the sum is known: as if they were of equal length.
        work = prompts * self._cost.prompt_seconds(tokens // max(1, prompts))
        work *= max(1.0, _PATIENCE * prompts / max(1, streams))
        if work * step <= self._due * (step - alone):
            needed = step
        elif work < self._due:
            needed = alone * self._due / (self._due - work)
        else:
            needed = self._limit
        return max(step, min(self._limit, needed))


class AdaptiveBudget:
    """The largest chunks that keep the streams' gap, by a model of what a step costs on this machine.

    With streams the step takes what ``pace`` allows. Without them nobody waits for a token; then a step may take ``idle`` seconds, so
    that whoever comes meanwhile does not wait for the whole of a long prompt.
    """

    def __init__(self, cost: StepCost, pace: Pace, *, idle: float, most: FixedBudget) -> None:
        """``most``: what a step gives at most, and what it gives at least."""
        self._cost = cost
        self._pace = pace
        self._idle = idle
        self._most = most

    def allowance(self, decodes: int, context: int, prompts: int, tokens: int) -> Allowance:
        seconds, most = self._idle, self._most
        if decodes:
            alone = self._cost.seconds(0, decodes, context, 0.0)
            seconds = self._pace.step(alone, decodes, prompts, tokens) - alone
        return TimeAllowance(self._cost, seconds, tokens=max(most.total - decodes, most.floor), floor=most.floor)
