"""When requests come: renewal processes in open loop, under a rate that may change with time.

A process of unit rate is drawn in operational time and mapped through the inverse of the cumulative rate, so that every
kind of arrival can follow every ramp (Cinlar, Introduction to Stochastic Processes, 1975, section 4.7).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator

import msgspec
import numpy as np

from loadtest.errors import WorkloadError
from loadtest.randomness import generator

BATCH = 4096


class RateCurve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests per second over time: straight lines between ``points`` (seconds, rate), constant after the last."""

    points: tuple[tuple[float, float], ...]

    def rate(self, at: float) -> float:
        times = [time for time, _ in self.points]
        return float(np.interp(at, times, [rate for _, rate in self.points]))

    def cumulative(self) -> list[float]:
        """Expected arrivals until each point."""
        sums = [0.0]
        for (start, low), (stop, high) in itertools.pairwise(self.points):
            sums.append(sums[-1] + (stop - start) * (low + high) / 2)
        return sums

    def inverse(self, expected: float, sums: list[float]) -> float:
        """The time at which ``expected`` arrivals have come on average; infinite where the rate ends at 0."""
        segment = bisect.bisect_right(sums, expected) - 1
        start, low = self.points[segment]
        rest = expected - sums[segment]
        if segment == len(self.points) - 1:
            return start + rest / low if low > 0 else math.inf
        stop, high = self.points[segment + 1]
        slope = (high - low) / (stop - start)
        # low * t + slope * t^2 / 2 = rest, in the form that stays exact for a small slope.
        return start + 2 * rest / (low + math.sqrt(max(0.0, low * low + 2 * slope * rest)))


class Arrivals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``burstiness`` is the shape of gamma-distributed gaps, the field's convention: 1 = Poisson, less = burstier, infinite = constant."""

    curve: RateCurve
    burstiness: float = 1.0

    def times(self, seed: int) -> Iterator[float]:
        """Seconds from the start, ascending, without end (but infinite times end the iteration)."""
        rng = generator(seed, "arrivals")
        sums = self.curve.cumulative()
        expected = 0.0
        while True:
            for gap in self._unit_gaps(rng):
                expected += gap
                at = self.curve.inverse(expected, sums)
                if not math.isfinite(at):
                    return
                yield at

    def _unit_gaps(self, rng: np.random.Generator) -> list[float]:
        if math.isinf(self.burstiness):
            return [1.0] * BATCH
        gaps: list[float] = (rng.gamma(self.burstiness, 1.0, BATCH) / self.burstiness).tolist()
        return gaps


def constant_rate(rate: float) -> RateCurve:
    if not (math.isfinite(rate) and rate > 0):
        raise WorkloadError(f"--rate: must be above 0, not {rate:g}")
    return RateCurve(((0.0, rate),))


def parse_ramp(text: str, duration: float | None) -> RateCurve:
    """``2..20`` (straight over the duration), or ``2..20:60`` over 60 s; ``2,4,8:30`` holds each rate for 30 s. Raises WorkloadError."""
    body, _, span = text.partition(":")
    try:
        seconds = float(span) if span else duration
        if ".." in body:
            low, high = (float(part) for part in body.split(".."))
            points = [(0.0, low), (float(seconds or 0.0), high)]
        else:
            rates = [float(part) for part in body.split(",")]
            hold = float(span) if span else float(duration or 0.0) / len(rates)
            points = _steps(rates, hold)
            seconds = hold
    except ValueError:
        raise WorkloadError(f"--ramp: {text!r} is neither LOW..HIGH[:SECONDS] nor RATE,RATE,…[:SECONDS EACH]") from None
    if not seconds or seconds <= 0:
        raise WorkloadError(f"--ramp: {text!r} needs its seconds, or --duration")
    if any(rate < 0 or not math.isfinite(rate) for _, rate in points) or not any(rate for _, rate in points):
        raise WorkloadError(f"--ramp: rates must be at least 0 and not all 0, not {body!r}")
    return RateCurve(tuple(points))


def _steps(rates: list[float], hold: float) -> list[tuple[float, float]]:
    """A staircase. Its risers lean by a millionth of a step, because a curve has one rate at a time."""
    lean = hold * 1e-6
    points: list[tuple[float, float]] = []
    for step, rate in enumerate(rates):
        points += [(step * hold + (lean if step else 0.0), rate), ((step + 1) * hold, rate)]
    return points


def parse_burstiness(text: str) -> float:
    """The shape of the gaps' gamma distribution, or "constant". Raises WorkloadError."""
    if text == "constant":
        return math.inf
    try:
        value = 1.0 if text == "poisson" else float(text)
    except ValueError:
        raise WorkloadError(f"--arrivals: {text!r} is neither poisson, constant nor a burstiness") from None
    if not value > 0:
        raise WorkloadError(f"--arrivals: burstiness must be above 0, not {value:g}")
    return value
