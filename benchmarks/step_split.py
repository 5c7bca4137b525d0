"""Where a token's time goes: the engine thread's seconds by part of a step, and the processor time of each of the server's threads.

    python -m benchmarks.step_split [ENGINE] [--streams 1,4,16,32] [--rounds N]

Closed loop, 128 prompt and 64 output tokens, through the real server by the load tool's client. Per token and not per step, so
that widths can be compared. Processor time is the kernel's own count by thread (/proc/PID/task/*/schedstat, Linux only); what
OpenVINO computes is done by the engine thread and by threads of its own.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

import msgspec

from benchmarks.bench_startup import metrics_page
from benchmarks.served import Served, serving
from loadtest.race.courses import lengths
from loadtest.run import run_load
from loadtest.transports.base import Target
from loadtest.workload import Workload
from tests.engines_built import default_engine

SERIES = re.compile(r'^firsttoken_step_seconds(?:_total)?\{part="(\w+)"\} (\S+)$', re.MULTILINE)
STEPS = re.compile(r"^firsttoken_steps_total (\S+)$", re.MULTILINE)
OTHER = "all other threads (engine, OpenVINO's workers, gRPC's)"


class Reading(msgspec.Struct, frozen=True):
    parts: dict[str, float]
    """Seconds of the engine thread by part of a step."""
    steps: float
    threads: Counter[str]
    """Nanoseconds of processor time by kind of thread."""


def read(server: Served) -> Reading:
    page = metrics_page(server)
    parts = {part: float(seconds) for part, seconds in SERIES.findall(page)}
    found = STEPS.search(page)
    return Reading(parts, float(found.group(1)) if found else 0.0, processor_nanoseconds(server.process))


def processor_nanoseconds(process: int) -> Counter[str]:
    spent: Counter[str] = Counter()
    for task in Path(f"/proc/{process}/task").iterdir():
        kind = "event loop (main thread)" if task.name == str(process) else OTHER
        spent[kind] += int((task / "schedstat").read_text().split()[0])
    return spent


def measure(server: Served, streams: int, rounds: int) -> None:
    workload = Workload(concurrency=streams, requests=streams * rounds, lengths=lengths())
    target = Target("native", server.address)
    run_load(msgspec.structs.replace(workload, requests=streams, seed=1), target)
    before = read(server)
    result = run_load(workload, target)
    after = read(server)
    tokens = sum(sum(record.tokens) for record in result.records)
    steps = after.steps - before.steps
    print(f"\n{streams} streams: {tokens} tokens in {steps:.0f} steps; milliseconds a token")
    for part, seconds in after.parts.items():
        print(f"  {part:<52} {1e3 * (seconds - before.parts[part]) / tokens:8.3f}")
    print("  processor time")
    for kind, spent in (after.threads - before.threads).most_common():
        print(f"  {kind:<52} {spent / 1e6 / tokens:8.3f}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", nargs="?", type=Path)
    parser.add_argument("--streams", default="1,4,16,32")
    parser.add_argument("--rounds", type=int, default=2, help="requests of each stream")
    arguments = parser.parse_args()
    with serving(arguments.engine or default_engine(), "--telemetry.log_requests", "false") as server:
        for streams in map(int, arguments.streams.split(",")):
            measure(server, streams, max(arguments.rounds, 4 // streams))


if __name__ == "__main__":
    main()
