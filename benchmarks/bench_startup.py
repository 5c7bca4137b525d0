"""From exec to ready, with its parts as the server itself counts them (firsttoken_startup_seconds), medians over starts."""

from __future__ import annotations

import re
import statistics
import urllib.request
from collections import defaultdict

from benchmarks.figure import Figure, at_most
from benchmarks.served import Served, serving
from tests.engines_built import default_engine

STARTS = 5
PARTS = re.compile(r'^firsttoken_startup_seconds\{phase="(\w+)"\} (\S+)$', re.MULTILINE)


def metrics_page(server: Served) -> str:
    with urllib.request.urlopen(f"{server.http}/metrics") as page:  # noqa: S310 - our own loopback address
        return str(page.read().decode())


def figures() -> list[Figure]:
    parts: defaultdict[str, list[float]] = defaultdict(list)
    beyond: list[float] = []
    for _ in range(STARTS):
        with serving(default_engine()) as server:
            seconds = {phase: float(value) for phase, value in PARTS.findall(metrics_page(server))}
        beyond.append(server.seconds_to_ready - seconds["read"] - seconds["compile"])
        for phase, value in [*seconds.items(), ("exec to ready", server.seconds_to_ready)]:
            parts[phase].append(value)
    listed = ", ".join(f"{phase} {statistics.median(values):.2f}" for phase, values in parts.items())
    name = f"from exec to ready, beyond reading and compiling, p50 ({listed})"
    return [at_most(name, 1.5, statistics.median(beyond), "s")]
