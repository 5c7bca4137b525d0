"""What one replica does at a rate: utilisation, batch, time per token, and what each request would see.

With in-flight batching every step carries all running sequences and some of the prompts that came. If one step takes t, then
rate * t requests arrive in it, and by Little's law rate * output * t sequences run. Putting both into the step-time formula
gives t = fixed / (1 - load), where load is the work that one second's arrivals bring: time per token grows as 1 / (1 - load),
and the replica is full when load reaches 1. That is the mean. An objective is kept by requests, each with its own lengths and its
own moment, so whether it holds is judged as everywhere else (loadtest.slo): by the share of requests that keep all of it, here of
the traffic's own sample, played through step by step (loadtest.planner.stepping).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from engines.manifest import StepProfile
from loadtest.planner.stepping import Played, play
from loadtest.planner.traffic import Traffic
from loadtest.slo import Slo
from server.scheduling.config import BatcherConfig

STEP_SIZES = (512, 2048, 8192)
"""Tokens of a step that are weighed against each other."""
MOST = 2000
"""Requests that are played: the first so many of the traffic."""
WORTH = 1.02
"""A larger step must raise the capacity by so much: it stretches the gaps of those who stream."""
PRECISION = 1.01
SLOWEST = 2**-10
"""Requests per second below which nobody needs a plan."""


class Service(msgspec.Struct, frozen=True):
    """One replica at one rate. Seconds and tokens."""

    rate: float
    load: float
    """Share of the time that the work of the arrivals takes, the fixed cost of steps aside; 1 = full."""
    step: float
    """Seconds per step, on average: the mean time per output token."""
    running: float
    """Sequences in a step, on average."""
    kept: float
    """Share of requests that keep the whole objective."""
    ttft_p50: float
    ttft_quantile: float
    """At the attainment that was asked for."""
    ttft_p95: float
    tpot_quantile: float
    """Mean time per token of a request, at the attainment."""
    latency_mean: float
    latency_quantile: float
    latency_p95: float
    prefill_rate: float
    """Prompt tokens per second while others run."""
    held_tokens: float
    """Tokens in the KV cache on average: a running request holds its prompt and half of its output."""


class Replica(msgspec.Struct, frozen=True):
    """One replica and what must hold on it."""

    profile: StepProfile
    kv_tokens: int
    max_sequences: int
    slo: Slo
    attainment: float
    step_tokens: int = 2048

    def serve(self, traffic: Traffic, rate: float) -> Service | None:
        """Its steady state at ``rate`` requests per second; None where there is none."""
        cost, context = self.profile, traffic.prompt + traffic.output / 2
        coming, load = rate * traffic.pace, self._load(traffic, rate)
        if load >= 1:
            return None
        step = cost.fixed / (1 - load)
        running = coming * traffic.output * step
        full_step = cost.fixed + running * self._decode(traffic) + self.step_tokens * cost.per_new_token
        config = BatcherConfig(max_sequences=self.max_sequences, step_tokens=self.step_tokens)
        return self._describe(
            play(cost, traffic.head(MOST), rate, config),
            rate=rate,
            load=load,
            step=step,
            running=running,
            prefill_rate=self.step_tokens / full_step,
            held=lambda ttft: running * context + coming * ttft * traffic.prompt,
        )

    def _describe(
        self,
        played: Played,
        *,
        rate: float,
        load: float,
        step: float,
        running: float,
        prefill_rate: float,
        held: Callable[[float], float],
    ) -> Service:
        ttft, latency = (np.quantile(each, (0.5, self.attainment, 0.95)) for each in (played.ttft, played.latency))
        tpot = played.tpot[~np.isnan(played.tpot)]
        return Service(
            rate=rate,
            load=load,
            step=step,
            running=running,
            kept=played.share(self.slo),
            ttft_p50=float(ttft[0]),
            ttft_quantile=float(ttft[1]),
            ttft_p95=float(ttft[2]),
            tpot_quantile=float(np.quantile(tpot, self.attainment)) if len(tpot) else 0.0,
            latency_mean=float(played.latency.mean()),
            latency_quantile=float(latency[1]),
            latency_p95=float(latency[2]),
            prefill_rate=prefill_rate,
            held_tokens=held(float(ttft[0])),
        )

    def keeps(self, traffic: Traffic, rate: float) -> bool:
        """Whether the objective holds at this rate, and memory and seats suffice."""
        service = self.serve(traffic, rate)
        return service is not None and not self.broken(service)

    def broken(self, service: Service) -> list[str]:
        """What does not hold, by name."""
        broken = {"KV cache": service.held_tokens > self.kv_tokens, "seats": service.running > self.max_sequences}
        names = [name for name, whether in broken.items() if whether]
        return [*names, *(self._missed(service) if service.kept < self.attainment else [])]

    def _missed(self, service: Service) -> list[str]:
        """The bounds that too many requests miss; each may be kept by enough of them, and all together by too few."""
        slo = self.slo
        checks = {
            "time to first token": slo.ttft is not None and service.ttft_quantile > slo.ttft,
            "time per token": slo.itl is not None and service.tpot_quantile > slo.itl,
            "whole request": slo.e2e is not None and service.latency_quantile > slo.e2e,
        }
        return [name for name, missed in checks.items() if missed] or ["objective as a whole"]

    def capacity(self, traffic: Traffic) -> float:
        """The highest rate at which everything holds; 0 where nothing does. From above: busy replicas need fewer steps to play."""
        low = high = 2 * self._full(traffic)
        if not self.keeps(traffic, min(SLOWEST, low)):
            return 0.0
        while not self.keeps(traffic, low):
            low, high = max(SLOWEST, low / 2), low
        while high / low > PRECISION:
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.keeps(traffic, middle) else (low, middle)
        return low

    def _full(self, traffic: Traffic) -> float:
        """The rate whose work alone fills all time."""
        return 1 / self._load(traffic, 1.0)

    def _load(self, traffic: Traffic, rate: float) -> float:
        cost, fresh, output = self.profile, traffic.prompt * (1 - traffic.cached_share), traffic.output
        attended = cost.per_attention * fresh * (traffic.prompt - fresh / 2)
        prompts = fresh * cost.per_new_token + attended
        return rate * traffic.pace * (prompts + output * self._decode(traffic))

    def _decode(self, traffic: Traffic) -> float:
        """Seconds that a running sequence adds to a step."""
        return self.profile.per_decode + self.profile.per_decode_context * (traffic.prompt + traffic.output / 2)

    def tuned(self, traffic: Traffic) -> tuple[Replica, float]:
        """With the size of a step that carries most, and what it carries. Larger steps finish prompts sooner, but a stream's next
        token waits for them."""
        best, most = self, 0.0
        for size in STEP_SIZES:
            other = msgspec.structs.replace(self, step_tokens=size)
            if (capacity := other.capacity(traffic)) <= most * WORTH:
                break
            best, most = other, capacity
        return best, most

    def limit(self, traffic: Traffic, capacity: float) -> str:
        """What stops it from carrying more than ``capacity``."""
        for factor in (1.02, 1.05, 1.1, 1.2):  # a sample's share falls in stairs
            service = self.serve(traffic, max(SLOWEST, capacity * factor))
            if service is None:
                break
            if broken := self.broken(service):
                return " and ".join(broken)
        return "computation"
