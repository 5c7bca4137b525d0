"""What may be decided otherwise, as objects. The mechanism that acts on the decisions is one and stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from server.engine import GenerationRequest
from server.kv.eviction import EvictionPolicy, LeastRecentlyUsed
from server.scheduling.door import Door
from server.scheduling.sequence import Sequence


class Order(Protocol):
    """Who goes first within a class."""

    def rank(self, request: GenerationRequest) -> float:
        """Lower goes first; equals go by arrival. Asked once, when the request is queued, so that waiting is bounded."""
        ...


class FirstComeFirstServed:
    def rank(self, request: GenerationRequest) -> float:  # noqa: ARG002 - the order of queueing decides
        return 0.0


class StepBudget(Protocol):
    """How many new tokens prompts get of the next step."""

    def prefill_tokens(self, decodes: int) -> int:
        """At least 1, whatever ``decodes`` (rows of one token each) already take."""
        ...


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """``total`` tokens a step; prompts get what decodes leave, and never less than ``floor``."""

    total: int
    floor: int

    def prefill_tokens(self, decodes: int) -> int:
        return max(self.total - decodes, self.floor)


class VictimPolicy(Protocol):
    """Who gives up its blocks when a decode cannot get one."""

    def choose(self, seated: Iterable[Sequence]) -> Sequence:
        """One of ``seated``, which is not empty. Must never choose the first by key while others are seated: it carries progress."""
        ...


class LowestClassNewest:
    """The last by key: of the lowest class, who came last."""

    def choose(self, seated: Iterable[Sequence]) -> Sequence:
        return max(seated, key=lambda sequence: sequence.key)


@dataclass(frozen=True, slots=True)
class Policies:
    """The batcher's replaceable parts. None = as the configuration says."""

    order: Order = field(default_factory=FirstComeFirstServed)
    victims: VictimPolicy = field(default_factory=LowestClassNewest)
    budget: StepBudget | None = None
    door: Door | None = None
    eviction: Callable[[], EvictionPolicy] = LeastRecentlyUsed
