"""Two ranks over real MPI, from exec to ready, with the parts that the supervisor and the leader tell; medians over starts.

TensorRT-LLM is replaced by the contract fake, which loads nothing: what is measured is ours and MPI's share of a start.
"""

from __future__ import annotations

import statistics
from collections import defaultdict

from benchmarks.figure import Figure, at_most
from tests.trtllm.job import job

STARTS = 5


def figures() -> list[Figure]:
    parts: defaultdict[str, list[float]] = defaultdict(list)
    seconds: list[float] = []
    for _ in range(STARTS):
        with job() as running:
            seconds.append(running.seconds_to_ready)
            for phase, value in running.phases().items():
                parts[phase].append(value)
    listed = ", ".join(f"{phase} {statistics.median(values):.2f}" for phase, values in parts.items())
    return [at_most(f"two ranks over MPI, from exec to ready, p50 ({listed})", 3.5, statistics.median(seconds), "s")]
