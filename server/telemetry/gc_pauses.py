"""How long Python's garbage collector stopped every thread.

Plain numbers, read when somebody scrapes: a collection can begin anywhere, also while a metric's lock is held, so its callback must
not take one.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

GENERATIONS = 3


class GcPauses(Collector):
    """Counts from :meth:`install` to :meth:`remove`. The collector runs on one thread at a time, under the interpreter lock."""

    def __init__(self) -> None:
        self.pauses = [0] * GENERATIONS
        self.seconds = [0.0] * GENERATIONS
        self.longest = 0.0
        self._began = 0.0

    def install(self) -> None:
        gc.callbacks.append(self._called)

    def remove(self) -> None:
        """Idempotent."""
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)

    def _called(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
            return
        spent = time.perf_counter() - self._began
        generation = info["generation"]
        self.pauses[generation] += 1
        self.seconds[generation] += spent
        self.longest = max(self.longest, spent)

    def collect(self) -> Iterator[Metric]:
        count = CounterMetricFamily("firsttoken_gc_pauses", "Garbage collections of Python's.", labels=("generation",))
        spent = CounterMetricFamily(
            "firsttoken_gc_pause_seconds", "Time in them, while no thread of Python's ran.", labels=("generation",)
        )
        for generation in range(GENERATIONS):
            count.add_metric((str(generation),), self.pauses[generation])
            spent.add_metric((str(generation),), self.seconds[generation])
        yield from (count, spent)
        yield GaugeMetricFamily(
            "firsttoken_gc_longest_pause_seconds", "The longest of them so far.", value=self.longest
        )
