"""The plan: how many devices, how they are used, and how the server is set."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from build_scripts.devices import Device
from engines.manifest import StepProfile
from loadtest.errors import WorkloadError
from loadtest.planner import memory
from loadtest.planner.cost import step_cost
from loadtest.planner.memory import ContextCost, MemoryBill
from loadtest.planner.model import PlannedModel
from loadtest.planner.queueing import in_service, replicas
from loadtest.planner.service import STEP_SIZES, Replica, Service
from loadtest.planner.traffic import Traffic
from loadtest.slo import Slo

HEADROOM = 0.4
"""Between the 30 and the 50 % that a replica should keep free."""
TIMEOUT_FACTOR = 3
"""Clients should give up after three times the 95th percentile, not after a fixed half minute."""


class Wanted(msgspec.Struct, frozen=True):
    """What to plan for."""

    slo: Slo
    attainment: float = 0.9
    headroom: float = HEADROOM
    weights: str = "bf16"
    kv: str = "bf16"
    context: int | None = None
    """Longest prompt and output together; None = what the traffic needs."""
    max_sequences: int = 256
    tp: int | None = None
    """Devices of a replica; None = the planner chooses."""
    usable: float = memory.USABLE

    def check(self) -> None:
        """Raises WorkloadError naming the option, the limit and the value given."""
        shares = {"--attainment": self.attainment, "--memory-share": self.usable}
        for option, share in shares.items():
            if not 0 < share <= 1:
                raise WorkloadError(f"{option}: must be above 0, at most 1, not {share:g}")
        if not 0 <= self.headroom < 1:
            raise WorkloadError(f"--headroom: must be at least 0 and below 1, not {self.headroom:g}")
        for option, count in {
            "--context": self.context,
            "--tp": self.tp,
            "--max-sequences": self.max_sequences,
        }.items():
            if count is not None and count < 1:
                raise WorkloadError(f"{option}: must be at least 1, not {count}")


class Option(msgspec.Struct, frozen=True):
    """One way to split the model, and what it would take."""

    tp: int
    bill: MemoryBill
    capacity: float
    """Requests per second of one replica that keep the objective; 0 = it cannot."""
    limit: str
    replicas: int
    """0 = it cannot."""
    step_tokens: int = 0
    """Tokens of a step at which it carries that."""

    @property
    def devices(self) -> int:
        return self.tp * self.replicas


class Settings(msgspec.Struct, frozen=True):
    """What the server of one replica should be told."""

    max_context: int
    max_sequences: int
    step_tokens: int
    kv_bytes: int
    max_waiting_requests: int
    max_waiting_tokens: int
    client_timeout: float


class Plan(msgspec.Struct, frozen=True):
    model: str
    parameters: int
    device: str
    profile: StepProfile
    rate: float
    prompt_mean: float
    output_mean: float
    cached_share: float
    slo: str
    attainment: float
    headroom: float
    chosen: Option
    why: tuple[str, ...]
    options: tuple[Option, ...]
    service: Service
    """One replica at its share of the rate."""
    in_service: float
    """Requests in service over all replicas: Little's law."""
    sequences_mean: int
    """Sequences of mean length that fit one replica's KV cache."""
    sequences_p95: int
    contexts: tuple[ContextCost, ...]
    settings: Settings


class Planner:
    """Plans one model for one traffic. ``context`` is the longest prompt and output together."""

    def __init__(self, model: PlannedModel, traffic: Traffic, wanted: Wanted) -> None:
        """Raises WorkloadError where the context does not suffice."""
        self.model, self.traffic, self.wanted = model, traffic, wanted
        self.context = wanted.context or traffic.longest
        if self.context > model.max_context:
            raise WorkloadError(f"--context: {self.context} tokens; {model.name} was trained for {model.max_context}")
        if traffic.longest > self.context:
            raise WorkloadError(f"--context: {self.context} tokens; the longest request needs {traffic.longest}")

    def on_device(self, device: Device) -> Plan:
        """Choose the split with the fewest devices; with equal numbers the smaller one. Raises WorkloadError where none can."""
        sizes = [self.wanted.tp] if self.wanted.tp is not None else splits(self.model, device)
        options = [self._option(device, tp) for tp in sizes]
        able = [option for option in options if option.replicas]
        if not able:
            reasons = "; ".join(f"tp {option.tp}: {option.limit}" for option in options)
            raise WorkloadError(
                f"{self.model.name} cannot meet {self.wanted.slo} on {device.name}: {reasons}. A larger device, lower precision "
                f"or a looser objective may do; pipeline parallelism over machines is the last resort and not planned here"
            )
        chosen = min(able, key=lambda option: (option.devices, option.tp))
        return self._complete(device.name, chosen, options, self._cost(device, chosen.tp))

    def measured(self, name: str, bill: MemoryBill, profile: StepProfile) -> Plan:
        """For a machine whose step times were measured. Raises WorkloadError."""
        option = self.weigh(1, bill, profile)
        if not option.replicas:
            raise WorkloadError(f"{self.model.name} cannot meet {self.wanted.slo} on {name}: {option.limit}")
        return self._complete(name, option, [option], profile)

    def weigh(self, tp: int, bill: MemoryBill, profile: StepProfile) -> Option:
        """What one split can do, and how many replicas of it the rate takes."""
        if bill.kv <= 0:
            return Option(tp, bill, 0.0, "the weights do not fit", 0)
        if bill.tokens < self.context:
            limit = f"room for {bill.tokens} tokens, one sequence of {self.context} does not fit"
            return Option(tp, bill, 0.0, limit, 0)
        replica, capacity = self._replica(profile, bill).tuned(self.traffic)
        limit = replica.limit(self.traffic, capacity)
        if capacity <= 0:
            return Option(tp, bill, 0.0, f"even one request at a time breaks: {limit}", 0)
        count = replicas(self.traffic.rate, 1.0, capacity, self.wanted.headroom)
        return Option(tp, bill, capacity, limit, count, replica.step_tokens)

    def _cost(self, device: Device, tp: int) -> StepProfile:
        return step_cost(self.model, device, tp, weights=self.wanted.weights, kv=self.wanted.kv)

    def _option(self, device: Device, tp: int) -> Option:
        wanted = self.wanted
        bill = memory.draw_up(
            self.model,
            device.memory,
            tp,
            weights=wanted.weights,
            kv=wanted.kv,
            step_tokens=STEP_SIZES[-1],
            usable=wanted.usable,
        )
        return self.weigh(tp, bill, self._cost(device, tp))

    def _replica(self, profile: StepProfile, bill: MemoryBill, step_tokens: int = STEP_SIZES[0]) -> Replica:
        return Replica(
            profile, bill.tokens, self.wanted.max_sequences, self.wanted.slo, self.wanted.attainment, step_tokens
        )

    def _complete(self, device: str, chosen: Option, options: Sequence[Option], profile: StepProfile) -> Plan:
        traffic, wanted, model = self.traffic, self.wanted, self.model
        replica = self._replica(profile, chosen.bill, chosen.step_tokens)
        service = replica.serve(traffic, traffic.rate / chosen.replicas)
        if service is None:
            raise WorkloadError(f"{chosen.replicas} replicas have no steady state at {traffic.rate:g} requests/s")
        longest = max(self.context, min(model.max_context, 2 * self.context))
        return Plan(
            model=model.name,
            parameters=model.parameters,
            device=device,
            profile=profile,
            rate=traffic.rate,
            prompt_mean=traffic.prompt,
            output_mean=traffic.output,
            cached_share=traffic.cached_share,
            slo=str(wanted.slo),
            attainment=wanted.attainment,
            headroom=wanted.headroom,
            chosen=chosen,
            why=tuple(explain(chosen, options, wanted)),
            options=tuple(options),
            service=service,
            in_service=in_service(traffic.rate, service.latency_mean),
            sequences_mean=int(chosen.bill.tokens / (traffic.prompt + traffic.output)),
            sequences_p95=int(chosen.bill.tokens / traffic.total_p95),
            contexts=tuple(memory.context_costs(model, chosen.bill, longest)),
            settings=self._settings(chosen, service, replica),
        )

    def _settings(self, chosen: Option, service: Service, replica: Replica) -> Settings:
        """Seats for all whose keys and values fit: a mean says nothing of a burst. A queue no longer than the objective allows: the
        tokens that are computed within it."""
        wanted, traffic = self.wanted, self.traffic
        ttft = wanted.slo.ttft if wanted.slo.ttft is not None else 10 * service.ttft_p95
        tokens = max(self.context, int(ttft * service.prefill_rate))
        full = replica.serve(traffic, chosen.capacity) or service
        fitting = int(chosen.bill.tokens / (traffic.prompt + traffic.output))
        seats = max(1, min(wanted.max_sequences, max(fitting, math.ceil(2 * full.running))))
        fresh = max(1.0, traffic.prompt * (1 - traffic.cached_share))
        return Settings(
            max_context=self.context,
            max_sequences=seats,
            step_tokens=max(chosen.step_tokens, seats),
            kv_bytes=chosen.bill.kv,
            max_waiting_requests=max(1, math.ceil(2 * tokens / fresh)),
            max_waiting_tokens=tokens,
            client_timeout=TIMEOUT_FACTOR * service.latency_p95,
        )


def splits(model: PlannedModel, device: Device) -> list[int]:
    """Tensor-parallel sizes: powers of two that divide the attention heads, within one machine's links."""
    return [tp for tp in (1, 2, 4, 8, 16) if tp <= device.max_linked and model.heads % tp == 0]


def explain(chosen: Option, options: Sequence[Option], wanted: Wanted) -> list[str]:
    """Why this split, in sentences."""
    words = [
        f"A replica of {option.tp} device{'s' if option.tp > 1 else ''} cannot do it: {option.limit}."
        for option in options
        if option.tp < chosen.tp and not option.replicas
    ]
    if chosen.tp == 1:
        words.append(
            "The model fits one device, so replicas share nothing and scale by adding more of them (data parallel)."
        )
    else:
        words.append(
            f"Tensor parallel over {chosen.tp} devices: each step reads the weights {chosen.tp} times as fast."
        )
    words += [
        f"tp {option.tp} would take {option.devices} devices instead of {chosen.devices}."
        for option in options
        if option.replicas and option.tp != chosen.tp
    ]
    words.append(
        f"One replica carries {chosen.capacity:.2f} requests/s; its limit is the {chosen.limit}. {wanted.headroom:.0%} of it stays "
        f"free, so {chosen.replicas} {'are' if chosen.replicas > 1 else 'is'} needed."
    )
    return words
