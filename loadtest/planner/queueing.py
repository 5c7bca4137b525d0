"""The arithmetic of queues that every plan rests on."""

from __future__ import annotations

import math

from loadtest.errors import WorkloadError


def in_service(rate: float, seconds: float) -> float:
    """Little's law, L = lambda * W: how many are in service at once when ``rate`` come per second and each takes ``seconds``."""
    return rate * seconds


def utilisation(rate: float, capacity: float) -> float:
    return rate / capacity


def mm1_waiting(rate: float, capacity: float) -> tuple[float, float]:
    """Of a single queue with random arrivals and services (M/M/1): how many are in the system on average, and for how many
    seconds. Infinite from full utilisation on."""
    load = utilisation(rate, capacity)
    if load >= 1:
        return math.inf, math.inf
    return load / (1 - load), 1 / (capacity - rate)


def replicas(rate: float, seconds: float, per_replica: float, headroom: float) -> int:
    """ceil(lambda * W / L / (1 - headroom)): replicas that hold ``per_replica`` requests each and keep a share free, because
    queues explode near full utilisation. Raises WorkloadError."""
    if not 0 <= headroom < 1:
        raise WorkloadError(f"--headroom: must be at least 0 and below 1, not {headroom:g}")
    # A hair less, so that a load that fits exactly is not given another replica by a rounding error.
    return max(1, math.ceil(in_service(rate, seconds) / per_replica / (1 - headroom) - 1e-9))
