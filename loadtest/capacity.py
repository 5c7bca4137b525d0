"""The highest rate that still meets an SLO, found by probing, with the uncertainty that the probes leave."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from loadtest.errors import WorkloadError
from loadtest.run import RunResult
from loadtest.slo import Slo, judged
from loadtest.sweep import Measure, with_rate
from loadtest.workload import Workload

BLOCKS = 12
"""Pieces of a probe that are resampled: requests near in time share their fate, so single ones must not be."""
RESAMPLES = 1000
MAX_DOUBLINGS = 16


class Search(msgspec.Struct, frozen=True):
    """How to look for it."""

    slo: Slo
    attainment: float = 0.9
    """Share of requests that must keep the SLO."""
    start: float = 1.0
    """Rate of the first probe, requests per second."""
    precision: float = 0.1
    """Stop halving when the bracket's ends lie this close, as a ratio above 1."""
    factor: float = 2.0
    """By which the rate is raised or lowered until the bracket is found."""
    repeats: int = 2
    """Probes at the ends of the bracket, to tell luck from truth."""

    def check(self) -> None:
        """Raises WorkloadError."""
        if not 0 < self.attainment < 1:
            raise WorkloadError(f"--attainment: must lie between 0 and 1, not {self.attainment:g}")
        if not (self.start > 0 and math.isfinite(self.start)):
            raise WorkloadError(f"--rate: must be above 0, not {self.start:g}")
        if not self.factor > 1:
            raise WorkloadError(f"factor: must be above 1, not {self.factor:g}")
        if not self.precision > 0:
            raise WorkloadError(f"--precision: must be above 0, not {self.precision:g}")


class Probe(msgspec.Struct, frozen=True):
    """One run at one rate. ``kept`` and ``counted`` are per block, in the order of sending."""

    rate: float
    kept: tuple[int, ...]
    counted: tuple[int, ...]

    @property
    def share(self) -> float:
        return sum(self.kept) / max(1, sum(self.counted))


class Capacity(msgspec.Struct, frozen=True):
    rate: float
    """Requests per second at which the share falls to the attainment."""
    low: float
    high: float
    """95 % interval, by resampling the probes' blocks."""
    slo: str
    attainment: float
    probes: tuple[Probe, ...]
    bracketed: bool
    """False: the search ended before it saw a rate on both sides, so that ``rate`` is only a bound."""

    @property
    def headroom_rates(self) -> tuple[float, float]:
        """What to plan for: 50 to 70 % of it, because queues explode near the limit."""
        return 0.5 * self.rate, 0.7 * self.rate


def make_probe(rate: float, result: RunResult, slo: Slo) -> Probe:
    """Judge a run in blocks. Raises WorkloadError where there is nothing to judge."""
    verdicts = [slo.kept(record) for record in result.records if judged(record)]
    if not verdicts:
        raise WorkloadError(f"no request to judge at {rate:g} requests/s: raise --duration, or lower --warmup")
    parts = [part for part in np.array_split(np.array(verdicts), min(BLOCKS, len(verdicts))) if len(part)]
    return Probe(rate, tuple(int(part.sum()) for part in parts), tuple(len(part) for part in parts))


class Prober:
    """Probes a workload at rates and remembers each answer."""

    def __init__(
        self, workload: Workload, search: Search, measure: Measure, on_probe: Callable[[Probe, RunResult], None]
    ) -> None:
        self._workload = workload
        self._search = search
        self._measure = measure
        self._on_probe = on_probe
        self.probes: list[Probe] = []

    def passes(self, rate: float) -> bool:
        seed = self._workload.seed + len(self.probes)
        workload = msgspec.structs.replace(with_rate(self._workload, rate), seed=seed)
        result = self._measure(workload)
        probe = make_probe(rate, result, self._search.slo)
        self.probes.append(probe)
        self._on_probe(probe, result)
        return probe.share >= self._search.attainment


def _ignore(_probe: Probe, _result: RunResult) -> None:
    """Nobody watches."""


def find_capacity(
    workload: Workload,
    search: Search,
    measure: Measure,
    on_probe: Callable[[Probe, RunResult], None] = _ignore,
) -> Capacity:
    """Bracket by doubling or halving, bisect (geometrically), repeat at the ends. Raises LoadError."""
    search.check()
    prober = Prober(workload, search, measure, on_probe)
    low, high = _bracket(prober, search)
    while low is not None and high is not None and high / low > 1 + search.precision:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if prober.passes(middle) else (low, middle)
    for rate in [end for end in (low, high) if end is not None] * (search.repeats - 1):
        prober.passes(rate)
    rate, interval = estimate(prober.probes, search.attainment)
    return Capacity(
        rate, *interval, str(search.slo), search.attainment, tuple(prober.probes), low is not None and high is not None
    )


def _bracket(prober: Prober, search: Search) -> tuple[float | None, float | None]:
    """A rate that passes and one, a factor higher, that does not; None for an end that was not found."""
    rate, up = search.start, prober.passes(search.start)
    for _ in range(MAX_DOUBLINGS):
        following = rate * search.factor if up else rate / search.factor
        if prober.passes(following) != up:
            return min(rate, following), max(rate, following)
        rate = following
    return (rate, None) if up else (None, rate)


def estimate(probes: Sequence[Probe], attainment: float, seed: int = 0) -> tuple[float, tuple[float, float]]:
    """Where the share crosses the attainment, and its 95 % interval by a bootstrap over blocks."""
    rng = np.random.default_rng(seed)
    kept = [np.array(probe.kept) for probe in probes]
    counted = [np.array(probe.counted) for probe in probes]
    rates = [probe.rate for probe in probes]
    found: list[float] = []
    for _ in range(RESAMPLES):
        picks = [rng.integers(len(each), size=len(each)) for each in kept]
        good = [float(each[pick].sum()) for each, pick in zip(kept, picks, strict=True)]
        all_ = [float(each[pick].sum()) for each, pick in zip(counted, picks, strict=True)]
        found.append(crossing(rates, good, all_, attainment))
    centre = crossing(rates, [float(each.sum()) for each in kept], [float(each.sum()) for each in counted], attainment)
    low, high = (float(value) for value in np.percentile(found, (2.5, 97.5)))
    return centre, (min(low, centre), max(high, centre))


def crossing(rates: Sequence[float], kept: Sequence[float], counted: Sequence[float], attainment: float) -> float:
    """The rate at which a falling fit of the shares (isotonic regression, by pooling adjacent violators) meets the
    attainment, interpolated on a logarithmic scale of rates; the nearest end where it never does."""
    totals: dict[float, list[float]] = {}
    for rate, good, all_ in zip(rates, kept, counted, strict=True):
        total = totals.setdefault(rate, [0.0, 0.0])
        total[0] += good
        total[1] += all_
    points = sorted(totals)
    shares = _falling(
        [totals[rate][0] / max(1.0, totals[rate][1]) for rate in points], [totals[rate][1] for rate in points]
    )
    if shares[0] < attainment:
        return points[0]
    for place in range(1, len(points)):
        above, below = shares[place - 1], shares[place]
        if below < attainment:
            part = (above - attainment) / (above - below)
            return math.exp(math.log(points[place - 1]) + part * math.log(points[place] / points[place - 1]))
    return points[-1]


def _falling(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The closest non-increasing sequence, by weighted least squares."""
    pools: list[list[float]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            right, left = pools.pop(), pools.pop()
            total = left[1] + right[1]
            pools.append([(left[0] * left[1] + right[0] * right[1]) / total, total, left[2] + right[2]])
    return [value for value, _, count in pools for _ in range(int(count))]
