"""`make race`: ``python -m loadtest.race.run ENGINE [--quick] [--peer NAME …] [--output FILE]``. Nothing else may run meanwhile.

Every repeat starts each server in turn, in an order that rotates, so that a machine that warms up or is disturbed does not
favour one of them. First all widths in closed loop; the best peer's throughput there sets the rates of the open-loop courses.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import psutil

from build_scripts.golden.reference import Golden, find_golden
from loadtest.errors import LoadError
from loadtest.planner.machine import read_manifest
from loadtest.race import courses
from loadtest.race.courses import Scale
from loadtest.race.environment import HOME, RaceError
from loadtest.race.fidelity import agreement
from loadtest.race.models import RaceModel, find_model
from loadtest.race.peers import PEERS, Peer, peer_python, serving
from loadtest.race.results import Leg, Race, leg, markdown, median_of
from loadtest.run import run_load
from loadtest.summary import summarise
from loadtest.transports.base import Target
from loadtest.workload import Workload

QUICK_FIDELITY_EVERY = 20


class Racing:
    """One race. Peers that cannot take part are left out and named."""

    def __init__(self, model: RaceModel, peers: Sequence[Peer], scale: Scale, threads: int) -> None:
        self._model, self._scale, self._threads = model, scale, threads
        self._peers = list(peers)
        self.legs: list[Leg] = []
        self.fidelity: dict[str, float] = {}
        self.absent: dict[str, str] = {}

    def prepare(self) -> None:
        """Install everybody before anything is measured."""
        for peer in list(self._peers):
            try:
                peer_python(peer)
            except RaceError as error:
                self._leave_out(peer, error)

    def run(self, golden: Golden, every: int) -> None:
        self._phase(self._widths)
        best = self._best_rate()
        for peer in list(self._peers):
            self._with(peer, partial(self._measure_fidelity, peer.name, golden, every))
        self._phase(partial(self._open, best))

    def _phase(self, course: Callable[[Peer, int, Target], None]) -> None:
        for repeat in range(self._scale.repeats):
            order = (
                self._peers[repeat % len(self._peers) :] + self._peers[: repeat % len(self._peers)]
                if self._peers
                else []
            )
            for peer in order:
                self._with(peer, partial(course, peer, repeat))

    def _with(self, peer: Peer, work: Callable[[Target], None]) -> None:
        try:
            with serving(peer, self._model, self._threads) as target:
                run_load(courses.closed(4, courses.QUICK, seed=99), target)  # warm
                work(target)
        except LoadError as error:
            self._leave_out(peer, error)

    def _leave_out(self, peer: Peer, error: LoadError) -> None:
        self.absent[peer.name] = str(error)
        if peer in self._peers:
            self._peers.remove(peer)
        sys.stderr.write(f"{peer.name} is left out: {error}\n")

    def _widths(self, peer: Peer, repeat: int, target: Target) -> None:
        for width in courses.WIDTHS:
            self._leg(f"{width} streams", peer, target, repeat, courses.closed(width, self._scale, seed=repeat))

    def _open(self, best: float, peer: Peer, repeat: int, target: Target) -> None:
        scale = self._scale
        work = {
            "random arrivals at 50 % of the best peer's capacity": courses.poisson(best * 0.5, scale, repeat),
            "random arrivals at 90 % of the best peer's capacity": courses.poisson(best * 0.9, scale, repeat),
            "shared system prompt of 512 tokens": courses.shared_prefix(best * 0.5, scale, repeat),
            "conversations of four turns": courses.conversations(scale, repeat),
            "short questions with a long document now and then": courses.long_prompts(best * 0.3, scale, repeat),
        }
        for name, workload in work.items():
            self._leg(name, peer, target, repeat, workload)

    def _leg(self, course: str, peer: Peer, target: Target, repeat: int, workload: Workload) -> None:
        summary = summarise(run_load(workload, target))
        self.legs.append(leg(course, peer.name, repeat, summary))
        sys.stderr.write(f"{repeat} {peer.name:<12} {course:<52} {summary.output_tokens_per_second:8.1f} tokens/s\n")

    def _measure_fidelity(self, name: str, golden: Golden, every: int, target: Target) -> None:
        self.fidelity[name] = agreement(target, golden, self._model.tokenizer, every)

    def _best_rate(self) -> float:
        """Requests per second of the fastest server at the greatest width, ours aside."""
        course = f"{courses.WIDTHS[-1]} streams"
        names = {each.peer for each in self.legs} - {"firsttoken"} or {each.peer for each in self.legs}
        rates = [
            found[0]
            for name in names
            if (
                found := median_of(
                    [each for each in self.legs if each.course == course and each.peer == name], "tokens_per_second"
                )
            )
        ]
        if not rates:
            raise RaceError("nobody finished the widths")
        return max(rates) / courses.OUTPUT


def _machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    cpu = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    return f"{cpu}, {psutil.cpu_count(logical=False) or psutil.cpu_count()} cores, {memory:.0f} GiB"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []


def main() -> int:
    parser = argparse.ArgumentParser(prog="make race", description=__doc__)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--quick", action="store_true", help="once, briefly: shows that it works, not who is faster")
    parser.add_argument("--peer", action="append", choices=[peer.name for peer in PEERS], help="only these")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 2)
    parser.add_argument("--output", type=Path, default=HOME / "race.json")
    arguments = parser.parse_args()
    try:
        race = _race(arguments)
    except LoadError as error:
        sys.stderr.write(f"race: {error}\n")
        return 1
    arguments.output.write_bytes(msgspec.json.format(msgspec.json.encode(race), indent=1))
    sys.stdout.write(markdown(race, {peer.name: peer.label for peer in PEERS}))
    return 0


def _race(arguments: argparse.Namespace) -> Race:
    model = find_model(arguments.engine)
    golden = find_golden(read_manifest(model.engine).source.sha256)
    if golden is None:
        raise RaceError("no golden data of this checkpoint")
    chosen = [peer for peer in PEERS if not arguments.peer or peer.name in arguments.peer]
    racing = Racing(model, chosen, courses.QUICK if arguments.quick else courses.FULL, arguments.threads)
    racing.prepare()
    racing.run(golden, QUICK_FIDELITY_EVERY if arguments.quick else 1)
    versions = {
        peer.name: ", ".join(peer.requirements) or "this checkout" for peer in chosen if peer.name not in racing.absent
    }
    return Race(_machine(), arguments.threads, arguments.quick, versions, racing.fidelity, racing.legs, racing.absent)


if __name__ == "__main__":
    sys.exit(main())
