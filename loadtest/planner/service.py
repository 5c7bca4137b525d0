"""What one replica does at a rate: utilisation, batch, time per token, time to first token, in steady state.

With in-flight batching every step carries all running sequences and some of the prompts that came. If one step takes t, then
rate * t requests arrive in it, and by Little's law rate * output * t sequences run. Putting both into the step-time formula
gives t = fixed / (1 - load), where load is the work that one second's arrivals bring: time per token grows as 1 / (1 - load),
and the replica is full when load reaches 1.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from engines.manifest import StepProfile
from loadtest.planner.traffic import Traffic
from loadtest.slo import Slo

DRAWS = 4000
MAX_STEP_TOKENS = 8192
MIN_STEP_TOKENS = 64


class Service(msgspec.Struct, frozen=True):
    """One replica at one rate. Seconds and tokens."""

    rate: float
    load: float
    """Share of the time that the work of the arrivals takes, the fixed cost of steps aside; 1 = full."""
    step: float
    """Seconds per step, which is the time per output token."""
    running: float
    """Sequences in a step, on average."""
    ttft_p50: float
    ttft_quantile: float
    """At the attainment that was asked for."""
    ttft_p95: float
    latency_mean: float
    latency_p95: float
    step_tokens: int
    """Prompt tokens that a step may take without breaking the time per token."""
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

    def serve(self, traffic: Traffic, rate: float) -> Service | None:
        """Its steady state at ``rate`` requests per second; None where there is none."""
        cost, fresh, output = self.profile, traffic.prompt * (1 - traffic.cached_share), traffic.output
        context = traffic.prompt + output / 2
        attended = cost.per_attention * fresh * (traffic.prompt - fresh / 2)
        decode = cost.per_decode + cost.per_decode_context * context
        load = rate * (fresh * cost.per_new_token + attended + output * decode)
        if load >= 1:
            return None
        step = cost.fixed / (1 - load)
        running = rate * output * step
        chunk = self._step_tokens(cost, running, decode)
        chunk_seconds = cost.fixed + running * decode + chunk * cost.per_new_token
        prefill_rate = chunk / chunk_seconds
        waits = self._first_tokens(traffic, rate, prefill_rate, chunk_seconds)
        if waits is None:
            return None
        answers = waits + step * np.resize(np.array(traffic.outputs), len(waits))
        p50, quantile, p95 = (float(value) for value in np.quantile(waits, (0.5, self.attainment, 0.95)))
        return Service(
            rate=rate,
            load=load,
            step=step,
            running=running,
            ttft_p50=p50,
            ttft_quantile=quantile,
            ttft_p95=p95,
            latency_mean=float(answers.mean()),
            latency_p95=float(np.quantile(answers, 0.95)),
            step_tokens=chunk,
            prefill_rate=prefill_rate,
            held_tokens=running * context + rate * p50 * traffic.prompt,
        )

    def keeps(self, traffic: Traffic, rate: float) -> bool:
        """Whether the objective holds at this rate, and memory and seats suffice."""
        service = self.serve(traffic, rate)
        return service is not None and not self.broken(service)

    def broken(self, service: Service) -> list[str]:
        """What does not hold, by name."""
        slo = self.slo
        checks = {
            "time to first token": slo.ttft is not None and service.ttft_quantile > slo.ttft,
            "time per token": slo.itl is not None and service.step > slo.itl,
            "whole request": slo.e2e is not None and service.latency_p95 > slo.e2e,
            "KV cache": service.held_tokens > self.kv_tokens,
            "seats": service.running > self.max_sequences,
        }
        return [name for name, broken in checks.items() if broken]

    def capacity(self, traffic: Traffic) -> float:
        """The highest rate at which everything holds; 0 where nothing does."""
        if not self.keeps(traffic, 1e-6):
            return 0.0
        low, high = 1e-6, 1.0
        while self.keeps(traffic, high):
            low, high = high, high * 2
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self.keeps(traffic, middle) else (low, middle)
        return low

    def limit(self, traffic: Traffic, capacity: float) -> str:
        """What stops it from carrying more than ``capacity``."""
        service = self.serve(traffic, capacity * 1.02 + 1e-6)
        return "computation" if service is None else " and ".join(self.broken(service)) or "computation"

    def _step_tokens(self, cost: StepProfile, running: float, decode: float) -> int:
        """The largest chunk of prompt that a step can take within the time per token, in whole blocks of 64."""
        if self.slo.itl is None:
            return 2048
        room = (self.slo.itl - cost.fixed - running * decode) / max(cost.per_new_token, 1e-12)
        return max(MIN_STEP_TOKENS, min(MAX_STEP_TOKENS, int(room) // 64 * 64))

    def _first_tokens(
        self, traffic: Traffic, rate: float, prefill_rate: float, chunk_seconds: float
    ) -> np.ndarray | None:
        """A sample of times to the first token: half a step until the next one starts, the prompts before it, its own prompt.

        Prompts are served one after the other at the prefill rate, and come as the traffic's own gaps have them, so that bursts
        count: waiting by Lindley's recursion (1952). None where prompts come faster than they are served.
        """
        count = max(DRAWS, len(traffic.prompts))
        fresh = np.resize(np.array(traffic.prompts, float), count) * (1 - traffic.cached_share)
        service = np.ceil(np.maximum(1, fresh) / max(1.0, prefill_rate * chunk_seconds)) * self.profile.fixed
        service = np.maximum(service, fresh / prefill_rate)
        if rate * float(service.mean()) >= 1:
            return None
        unit = np.array(traffic.gaps) if traffic.gaps else np.random.default_rng(1).exponential(1.0, count)
        result: np.ndarray = waiting(service, np.resize(unit, count) / rate) + self.profile.fixed / 2 + service
        return result


def waiting(service: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """Seconds that each customer of one server waits: W(n+1) = max(0, W(n) + S(n) - A(n+1)), as a running minimum.
    ``gaps[n]`` is the time between customer n - 1 and n."""
    steps = np.concatenate([[0.0], np.cumsum(service[:-1] - gaps[1:])])
    result: np.ndarray = steps - np.minimum.accumulate(steps)
    return result
