"""A plan checked by the simulator: the real scheduler, with the plan's step times and settings, in virtual time."""

from __future__ import annotations

import msgspec

from engines.manifest import StepProfile
from engines.simulated.cost import CostModel
from loadtest.capacity import Capacity, Search, find_capacity
from loadtest.planner.memory import MemoryBill
from loadtest.planner.model import PlannedModel
from loadtest.planner.plan import Plan, Wanted
from loadtest.planner.service import Replica
from loadtest.planner.traffic import Traffic
from loadtest.simulation.profile import Profile
from loadtest.simulation.simulate import Setup, simulate
from loadtest.workload import Workload
from server.scheduling.config import BatcherConfig

BLOCK = 32
REQUESTS = 800
"""Of each probe: enough that its share of kept objectives is known to a percent or two."""
STEP_ROOM = 8192


class Check(msgspec.Struct, frozen=True):
    """What the simulator found for one replica."""

    capacity: float
    low: float
    high: float
    estimated: float
    """What the plan's theory says of the same requests: the first of the traffic."""

    @property
    def ratio(self) -> float:
        return self.estimated / self.capacity if self.capacity else float("inf")


def check_plan(plan: Plan, wanted: Wanted, workload: Workload, traffic: Traffic) -> Check:
    """Search the capacity of one replica in virtual time, from the plan's own figure on. Raises LoadError."""
    setup = Setup(plan_profile(plan), settings_of(plan))
    # The beginning of a trace is not the whole of it: what is compared is what both have seen.
    estimated = plan_replica(plan, wanted).capacity(traffic.head(REQUESTS))
    search = Search(wanted.slo, wanted.attainment, estimated or plan.chosen.capacity, precision=0.05, factor=1.25)
    # Its length is set by requests, not by time: probes at any rate then weigh the same.
    asked = msgspec.structs.replace(workload, requests=REQUESTS, duration=None, warmup=0.0, concurrency=None)
    found: Capacity = find_capacity(asked, search, lambda each: simulate(each, setup).result)
    return Check(found.rate, found.low, found.high, estimated)


def plan_replica(plan: Plan, wanted: Wanted) -> Replica:
    """The plan's replica as its theory knows it, with the settings that it recommends."""
    settings = plan.settings
    return Replica(
        plan.profile,
        plan.chosen.bill.tokens,
        settings.max_sequences,
        wanted.slo,
        wanted.attainment,
        settings.step_tokens,
    )


def plan_profile(plan: Plan) -> Profile:
    """The plan's replica as the simulator knows engines."""
    cost, settings = plan.profile, plan.settings
    return Profile(
        name=f"{plan.model} on {plan.device}",
        source=f"`firsttoken plan`: {cost.machine}",
        cost=CostModel(
            fixed=cost.fixed,
            per_new_token=cost.per_new_token,
            per_decode=cost.per_decode,
            per_decode_context=cost.per_decode_context,
            per_attention=cost.per_attention,
        ),
        kv_tokens=plan.chosen.bill.tokens // BLOCK * BLOCK,
        block_size=BLOCK,
        max_context=-(-settings.max_context // BLOCK) * BLOCK,
        max_rows=max(settings.max_sequences, 1),
        max_step_tokens=max(STEP_ROOM, settings.max_sequences + 64),
        overhead=0.0,
    )


def settings_of(plan: Plan) -> BatcherConfig:
    settings = plan.settings
    return BatcherConfig(max_sequences=settings.max_sequences, step_tokens=min(settings.step_tokens, STEP_ROOM))


def profile_model(profile: Profile) -> PlannedModel:
    """Of a profile only the limits matter to a plan: its step times say all about its size."""
    return PlannedModel(
        name=profile.name,
        parameters=0,
        layers=1,
        hidden=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        max_context=profile.limits().max_context,
    )


def profile_bill(profile: Profile) -> MemoryBill:
    """Memory in tokens, because that is all that a profile knows: one byte each."""
    return MemoryBill(profile.kv_tokens, profile.kv_tokens, 0, 0, profile.kv_tokens, 1)


def profile_steps(profile: Profile) -> StepProfile:
    """Step times with the time that a step takes outside the engine."""
    steps = profile.step_profile()
    return msgspec.structs.replace(steps, fixed=steps.fixed + profile.overhead)
