"""A replica's steps, played through one by one: in-flight batching in its barest form.

A step's time depends on what runs, and what runs depends on how long the steps took, so requests near the limit have no closed form;
a queue with the mean's service time is off by half where prompts and answers are spread as widely as people's are. This
model keeps what decides (decodes first, prompts in chunks of what they leave, short work before long, seats) and leaves out the rest
of a scheduler: blocks, prefixes, classes, tenants, noise. It is the theory that the simulator, which runs the real scheduler, checks.
"""

from __future__ import annotations

import heapq

import msgspec
import numpy as np

from engines.manifest import StepProfile
from loadtest.planner.traffic import Traffic
from loadtest.slo import Slo
from server.scheduling.config import BatcherConfig

FEWEST = 1000
"""Requests that are played: a smaller sample is repeated."""


class Played(msgspec.Struct, frozen=True):
    """What became of each request, in the order of arrival. Seconds."""

    ttft: np.ndarray
    """To the first token."""
    tpot: np.ndarray
    """Per token after the first; NaN where there is one token only."""
    latency: np.ndarray
    """To the last token."""

    def share(self, slo: Slo) -> float:
        """Of requests that keep every bound, as Slo.kept() judges real ones (gaps aside: only steps have those)."""
        seen = {"ttft": self.ttft, "itl": self.tpot, "e2e": self.latency}
        kept = np.ones(len(self.ttft), bool)
        for name, bound in slo.bounds.items():
            if name in seen:
                kept &= ~(seen[name] > bound)
        return float(kept.mean())


def play(cost: StepProfile, traffic: Traffic, rate: float, config: BatcherConfig) -> Played:
    """The traffic's sample at ``rate`` requests per second on one replica whose scheduler is set so."""
    steps = Steps(cost, traffic, rate, config)
    while not steps.over:
        steps.step()
    answers = np.array(steps.outputs)
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(answers > 1, (steps.last - steps.first) / (answers - 1), np.nan)
    return Played(steps.first - steps.arrivals, tpot, steps.last - steps.arrivals)


class Steps:
    """The state between two steps. Requests are known by their place in the order of arrival."""

    def __init__(self, cost: StepProfile, traffic: Traffic, rate: float, config: BatcherConfig) -> None:
        self._cost, self._config = cost, config
        count = max(FEWEST, len(traffic.prompts))
        self._prompts = np.resize(np.maximum(1, traffic.prompts), count).tolist()
        self.outputs = np.resize(np.maximum(1, traffic.outputs), count).tolist()
        fresh = 1 - traffic.cached_share
        self._left = [max(1, round(prompt * fresh)) for prompt in self._prompts]
        self.arrivals = np.cumsum(traffic.unit_gaps(count)) / rate
        self._due = [*self.arrivals.tolist(), float("inf")]
        self.first, self.last = np.zeros(count), np.zeros(count)
        self._come = self._ended = 0
        self._waiting: list[tuple[float, int]] = []
        self._seated: set[int] = set()
        self._endings: list[tuple[int, int]] = []
        self._number = self._context = 0
        self._now = 0.0

    @property
    def over(self) -> bool:
        return self._ended == len(self._prompts)

    def step(self) -> None:
        """Run one, or wait for the next request where nothing is to do."""
        if not self._waiting and not self._endings:
            self._now = max(self._now, self._due[self._come])
        self._arrive()
        cost, decodes, context = self._cost, len(self._endings), self._context
        done, new, attention = self._chunks(decodes)
        self._now += cost.fixed + decodes * cost.per_decode + context * cost.per_decode_context
        self._now += new * cost.per_new_token + attention * cost.per_attention
        self._number += 1
        self._context += decodes
        self._end()
        self._begin(done)

    def _arrive(self) -> None:
        while self._due[self._come] <= self._now:
            place = self._come
            self._come += 1
            fresh, past = self._left[place], self._prompts[place] - self._left[place]
            work = fresh * self._cost.per_new_token + fresh * (past + fresh / 2) * self._cost.per_attention
            heapq.heappush(self._waiting, (self._due[place] + self._config.length_weight * work, place))

    def _chunks(self, decodes: int) -> tuple[list[int], int, float]:
        """Spend what the decodes leave of a step on prompts: which end, how many tokens, and how much they attend to."""
        config = self._config
        left = total = max(config.step_tokens - decodes, config.min_prefill_tokens)
        seats, contended = config.max_sequences - decodes, len(self._waiting) > 1
        done: list[int] = []
        unfinished: list[tuple[float, int]] = []
        attention = 0.0
        while self._waiting and left and len(unfinished) < config.max_partial_prefills:
            key, place = heapq.heappop(self._waiting)
            if place not in self._seated and len(self._seated) >= seats:
                unfinished.append((key, place))
                break
            self._seated.add(place)
            remaining = self._left[place]
            most = left // config.max_partial_prefills if contended and remaining > config.long_prompt_tokens else left
            size = min(remaining, max(1, most))
            attention += size * (self._prompts[place] - remaining + size / 2)
            left -= size
            self._left[place] = remaining - size
            if size == remaining:
                self._seated.remove(place)
                done.append(place)
                seats -= 1
            else:
                unfinished.append((key, place))
        for each in unfinished:
            heapq.heappush(self._waiting, each)
        return done, total - left, attention

    def _end(self) -> None:
        while self._endings and self._endings[0][0] <= self._number:
            _, place = heapq.heappop(self._endings)
            self._finish(place)
            self._context -= self._prompts[place] + self.outputs[place]

    def _begin(self, done: list[int]) -> None:
        """Those whose prompt ended have their first token, and decode from the next step on."""
        for place in done:
            self.first[place] = self._now
            if self.outputs[place] == 1:
                self._finish(place)
                continue
            heapq.heappush(self._endings, (self._number + self.outputs[place] - 1, place))
            self._context += self._prompts[place] + 1

    def _finish(self, place: int) -> None:
        self.last[place] = self._now
        self._ended += 1
