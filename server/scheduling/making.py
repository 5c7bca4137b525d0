"""From the configuration to the policies that it describes, where no other was given."""

from __future__ import annotations

from collections.abc import Callable

from server.kv.eviction import EvictionPolicy, LeastRecentlyUsed, ReusedStayLonger
from server.scheduling.budget import AdaptiveBudget, FixedBudget, Pace, StepBudget
from server.scheduling.config import BatcherConfig
from server.scheduling.cost import StepCost
from server.scheduling.lengths import ExpectedLengths
from server.scheduling.order import AgedByWork, FirstComeFirstServed, Order
from server.scheduling.policies import Policies
from server.scheduling.reception import Reception
from server.scheduling.shares import ClassShares
from server.scheduling.tenants import W
from server.scheduling.waiting_room import WaitingRoom


def make_reception(config: BatcherConfig, cost: StepCost, policies: Policies) -> Reception:
    return Reception(policies.order or _make_order(config, cost), ExpectedLengths(config.length_quantile))


def _make_order(config: BatcherConfig, cost: StepCost) -> Order:
    if config.order == "arrival":
        return FirstComeFirstServed()
    return AgedByWork(cost, targets=config.targets, per_token=config.target_per_token, weight=config.length_weight)


def make_room(config: BatcherConfig, shares: ClassShares) -> WaitingRoom[W]:
    return WaitingRoom(shares, fair=config.fair_tenants, burst=config.tenant_burst)


def make_eviction(config: BatcherConfig) -> Callable[[], EvictionPolicy]:
    return ReusedStayLonger if config.eviction == "reuse" else LeastRecentlyUsed


def make_pace(config: BatcherConfig, cost: StepCost) -> Pace:
    return Pace(
        cost,
        target=config.itl_target,
        stretch=config.itl_stretch,
        limit=config.itl_limit,
        due=config.interactive_target / 2,
    )


def make_budget(config: BatcherConfig, cost: StepCost) -> StepBudget:
    fixed = FixedBudget(config.step_tokens, config.min_prefill_tokens)
    if config.budget == "fixed":
        return fixed
    return AdaptiveBudget(cost, make_pace(config, cost), idle=config.idle_step, most=fixed)
