"""The same workload at several rates, and the knee of what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from loadtest.arrivals import Arrivals, constant_rate
from loadtest.errors import WorkloadError
from loadtest.run import RunResult
from loadtest.traces import read_trace
from loadtest.workload import Workload

Measure: TypeAlias = Callable[[Workload], RunResult]


def with_rate(workload: Workload, rate: float) -> Workload:
    """The same workload at another rate: its trace sped up, or its arrivals at this rate. Raises WorkloadError."""
    if workload.concurrency is not None:
        raise WorkloadError("a closed loop has no rate to change: leave --concurrency out")
    if workload.trace is not None and workload.trace.replay_times:
        use = msgspec.structs.replace(workload.trace, speedup=rate / read_trace(Path(workload.trace.path)).rate)
        return msgspec.structs.replace(workload, trace=use)
    burstiness = workload.arrivals.burstiness if workload.arrivals is not None else 1.0
    return msgspec.structs.replace(workload, arrivals=Arrivals(constant_rate(rate), burstiness))


def parse_sweep(text: str) -> list[float]:
    """Read ``1,2,4,8``, ascending. Raises WorkloadError."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        raise WorkloadError(f"--sweep: {text!r} is no list of rates") from None
    if any(not rate > 0 for rate in rates) or rates != sorted(set(rates)):
        raise WorkloadError(f"--sweep: rates must be above 0 and ascending, not {text!r}")
    return rates


def sweep(workload: Workload, rates: Sequence[float], measure: Measure) -> list[RunResult]:
    """Measure at each rate in turn, each with a seed of its own. Raises LoadError."""
    return [
        measure(msgspec.structs.replace(with_rate(workload, rate), seed=workload.seed + number))
        for number, rate in enumerate(rates)
    ]


def knee(loads: Sequence[float], latencies: Sequence[float]) -> int | None:
    """Index of the point where the latency begins to run away: the greatest distance below the chord of the normalised
    curve (Satopää et al., "Finding a Kneedle in a Haystack", 2011). None where the curve has no such bend."""
    if len(loads) < 3 or loads[-1] <= loads[0] or max(latencies) <= min(latencies):
        return None
    low, high = min(latencies), max(latencies)
    across = [(load - loads[0]) / (loads[-1] - loads[0]) for load in loads]
    up = [(latency - low) / (high - low) for latency in latencies]
    below = [x - y for x, y in zip(across, up, strict=True)]
    best = max(range(len(below)), key=below.__getitem__)
    return best if below[best] > KNEE_DEPTH else None


KNEE_DEPTH = 0.15
"""A bend shallower than this share of the plot is noise."""
