"""What may be decided otherwise, as objects. The mechanism that acts on the decisions is one and stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from server.kv.eviction import EvictionPolicy
from server.scheduling.budget import StepBudget
from server.scheduling.door import Door
from server.scheduling.order import Order
from server.scheduling.sequence import Sequence


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

    order: Order | None = None
    victims: VictimPolicy = field(default_factory=LowestClassNewest)
    budget: StepBudget | None = None
    door: Door | None = None
    eviction: Callable[[], EvictionPolicy] | None = None
