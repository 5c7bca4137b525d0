"""How long clients should wait at most: three times the 95th percentile of what requests of a class take, from a bounded sketch.

Where a timeout derived from durations is what ends requests, the durations must not be those of the survivors alone: the percentile
would fall, the timeout with it, and more would be cut. So a request that a deadline ended counts, too, with the time it had, where that says
something about the percentile: where it was at least as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engine import PriorityClass

TIMES = 3.0
"""The timeout, in 95th percentiles."""
QUANTILE = 0.95
ENOUGH = 100
"""Requests of a class before its percentile is believed."""
REMEMBERED = 2048
"""Requests after which all counts are halved, so that the percentile is that of the recent ones."""

_GROWTH = 1.1
_SHORTEST = 0.001
_BUCKETS = ceil(log(86_400 / _SHORTEST) / log(_GROWTH)) + 1
"""From a millisecond to a day."""


class DurationSketch:
    """A quantile of seconds to within 5 %: counts in buckets whose bounds grow by a tenth (DDSketch: Masson, Rim, Lee, 2019).

    About 190 counts, whatever comes; the weight of what came earlier halves with each :data:`REMEMBERED` newer ones.
    """

    def __init__(self) -> None:
        self._counts = [0.0] * _BUCKETS
        self._since_halving = 0
        self.total = 0.0
        """The sum of the counts: at most twice :data:`REMEMBERED`."""

    def add(self, seconds: float) -> None:
        place = ceil(log(max(seconds, _SHORTEST) / _SHORTEST) / log(_GROWTH))
        self._counts[min(place, _BUCKETS - 1)] += 1.0
        self.total += 1.0
        self._since_halving += 1
        if self._since_halving >= REMEMBERED:
            self._since_halving = 0
            self._counts = [count / 2 for count in self._counts]
            self.total /= 2

    def quantile(self, share: float) -> float:
        """0 where nothing was added."""
        wanted, seen = share * self.total, 0.0
        for place, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return float(_SHORTEST * _GROWTH**place * 2 / (1 + _GROWTH))
        return 0.0

    def check_integrity(self) -> None:
        """Raises AssertionError where the counts do not add up."""
        if abs(sum(self._counts) - self.total) > 1e-6 * max(1.0, self.total):
            raise AssertionError(f"the counts add up to {sum(self._counts)}, not to {self.total}")


class Patience(Collector):
    """What clients are told. Event loop only."""

    def __init__(self, *, default: float, floor: float) -> None:
        """``default``: seconds that are told until :data:`ENOUGH` requests of a class are known. ``floor``: never less than so many."""
        self._default = default
        self._floor = floor
        self._sketches = [DurationSketch() for _ in PriorityClass]

    def finished(self, priority: PriorityClass, seconds: float) -> None:
        """A request ended well, ``seconds`` after its arrival."""
        self._sketches[priority].add(seconds)

    def cut(self, priority: PriorityClass, seconds: float) -> None:
        """A deadline ended a request, or would have, after ``seconds``: without one it would have taken longer."""
        sketch = self._sketches[priority]
        if seconds >= max(self._floor, sketch.quantile(QUANTILE)):
            sketch.add(seconds)

    def timeouts(self) -> tuple[float, float, float]:
        """Seconds, by class."""
        interactive, standard, batch = (self._timeout(sketch) for sketch in self._sketches)
        return interactive, standard, batch

    def _timeout(self, sketch: DurationSketch) -> float:
        if sketch.total < ENOUGH:
            return self._default
        return max(self._floor, TIMES * sketch.quantile(QUANTILE))

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "firsttoken_client_timeout_seconds",
            "What clients are told to wait for a request at most.",
            labels=("class",),
        )
        for priority, seconds in zip(PriorityClass, self.timeouts(), strict=True):
            gauge.add_metric((priority.name.lower(),), seconds)
        yield gauge

    def check_integrity(self) -> None:
        for sketch in self._sketches:
            sketch.check_integrity()
