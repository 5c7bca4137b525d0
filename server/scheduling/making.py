"""From the configuration to the policies that it describes, where no other was given."""

from __future__ import annotations

from engines.contract import RunnerLimits
from engines.manifest import StepProfile
from server.kv.block_pool import BlockPool
from server.kv.eviction import CostlyStayLonger, EvictionPolicy, LeastRecentlyUsed, ReusedStayLonger
from server.kv.prefix_cache import PrefixCache
from server.scheduling.budget import AdaptiveBudget, FixedBudget, Pace, StepBudget
from server.scheduling.config import BatcherConfig
from server.scheduling.cost import StepCost
from server.scheduling.counters import Counters
from server.scheduling.door import BatchingWindow
from server.scheduling.lengths import ExpectedLengths
from server.scheduling.order import AgedByWork, FirstComeFirstServed, Order
from server.scheduling.policies import Policies
from server.scheduling.preemption import PreemptionGuard
from server.scheduling.reception import Reception
from server.scheduling.seating import Seating
from server.scheduling.seats import Seats
from server.scheduling.sequence import Sequence
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
    return WaitingRoom(shares, fair=config.fair_tenants, burst=config.tenant_burst, long=config.long_prompt_tokens)


def make_cache(
    config: BatcherConfig, limits: RunnerLimits, policies: Policies, profile: StepProfile | None
) -> PrefixCache:
    """``profile`` says what attention costs; None = nothing, as far as is known."""
    pool = BlockPool(limits.block_count)
    policy = policies.eviction() if policies.eviction else _make_eviction(config, limits, profile)
    return PrefixCache(pool, limits.block_size, policy, longest_retention=config.max_retention)


def _make_eviction(config: BatcherConfig, limits: RunnerLimits, profile: StepProfile | None) -> EvictionPolicy:
    if config.eviction == "lru":
        return LeastRecentlyUsed()
    if config.eviction == "reuse":
        return ReusedStayLonger()
    if profile is None or not profile.per_new_token:
        return CostlyStayLonger(0.0)
    return CostlyStayLonger(profile.per_attention * limits.block_size / profile.per_new_token)


def make_pace(config: BatcherConfig, cost: StepCost) -> Pace:
    return Pace(
        cost,
        target=config.itl_target,
        stretch=config.itl_stretch,
        limit=config.itl_limit,
        due=config.interactive_target / 2,
        long=config.long_prompt_tokens,
    )


def make_seating(
    config: BatcherConfig,
    policies: Policies,
    *,
    cache: PrefixCache,
    room: WaitingRoom[Sequence],
    seats: Seats,
    counters: Counters,
) -> Seating:
    return Seating(
        config,
        cache=cache,
        room=room,
        seats=seats,
        counters=counters,
        door=policies.door or BatchingWindow(config.batch_size, config.batch_wait),
        guard=PreemptionGuard(per_request=config.max_preemptions, per_second=config.preemptions_per_second),
    )


def make_budget(config: BatcherConfig, cost: StepCost) -> StepBudget:
    fixed = FixedBudget(config.step_tokens, config.min_prefill_tokens)
    if config.budget == "fixed":
        return fixed
    return AdaptiveBudget(cost, make_pace(config, cost), idle=config.idle_step, most=fixed)
