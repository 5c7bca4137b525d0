"""Who goes first within a tenant of a class: a key fixed when the request is queued, so that nobody is overtaken for ever."""

from __future__ import annotations

from typing import Protocol

from server.engine import GenerationRequest
from server.scheduling.cost import StepCost


class Order(Protocol):
    """Engine thread only."""

    def rank(self, request: GenerationRequest, uncached: int, expected: float) -> float:
        """Lower goes first; equals go by arrival. Asked once. ``uncached``: prompt tokens to compute; ``expected``: output tokens."""
        ...


class FirstComeFirstServed:
    """By arrival alone."""

    def rank(self, request: GenerationRequest, uncached: int, expected: float) -> float:  # noqa: ARG002
        return 0.0


class AgedByWork:
    """``arrival + the class's target + weight * expected seconds of work``; an explicit, earlier ttft_deadline takes the place of
    arrival + target.

    Short work passes long work that came at most ``weight`` times the difference of their work earlier, and no more: with W the
    greatest work that the engine's context allows, nobody is overtaken by whoever comes more than weight * W + the targets' difference later.
    """

    def __init__(self, cost: StepCost, *, targets: tuple[float, float, float], per_token: float, weight: float) -> None:
        """``targets`` by class and ``per_token`` (of uncached prompt) in seconds: when the first token is due."""
        self._cost = cost
        self._targets = targets
        self._per_token = per_token
        self._weight = weight

    def rank(self, request: GenerationRequest, uncached: int, expected: float) -> float:
        due = request.arrival + self._targets[request.priority] + self._per_token * uncached
        if request.ttft_deadline is not None:
            due = min(due, request.ttft_deadline)
        past = len(request.prompt) - uncached
        work = self._cost.prompt_seconds(uncached, past) + self._cost.output_seconds(expected, len(request.prompt))
        return due + self._weight * work
