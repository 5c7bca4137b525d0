"""The scheduler's state over virtual time, sampled as a real server's would be."""

from __future__ import annotations

from loadtest.run import Sample
from loadtest.simulation.machine import Machine
from loadtest.transports.base import LoadSample

INTERVAL = 0.5
"""Seconds between two samples."""


class Sampler:
    """Takes a sample at every multiple of INTERVAL that has passed, of the state as it is found then."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._next = 0.0
        self.samples: list[Sample] = []

    def until(self, now: float) -> None:
        if now < self._next:
            return
        self._next = (now // INTERVAL + 1) * INTERVAL
        stats = self._machine.stats()
        total = stats.blocks_free + stats.blocks_cached + stats.blocks_in_use + stats.blocks_quarantined
        load = LoadSample(
            running=stats.running,
            waiting=sum(stats.waiting_by_class),
            waiting_tokens=stats.waiting_tokens,
            kv_utilisation=stats.blocks_in_use / total,
            kv_cached=stats.blocks_cached / total,
        )
        self.samples.append(Sample(now, load))
