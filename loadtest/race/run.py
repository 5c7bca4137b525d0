"""`make race`: ``python -m loadtest.race.run ENGINE [--quick] [--only COURSE …] [--peer NAME …] [--resume] [--output FILE]``.

Nothing else may run meanwhile. The peers are all up at once, and one that idles must not compute; each course is run by one after
the other, again and again, in an order that rotates, so that a machine that warms up or is disturbed does not favour one of them.
The widths come first, in closed loop: the best peer's throughput there sets the rates of the open-loop courses. ``--resume`` adds
to the results of an earlier race, so that one too long for a quiet hour can be run in pieces.
"""

from __future__ import annotations

import argparse
import contextlib
import platform
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from build_scripts.golden.reference import Golden, find_golden
from loadtest.errors import LoadError
from loadtest.planner.machine import read_manifest
from loadtest.race import courses
from loadtest.race.courses import COURSES, Course, Scale, seed_of
from loadtest.race.environment import HOME, RaceError
from loadtest.race.fidelity import agreement
from loadtest.race.models import RaceModel, find_model
from loadtest.race.peers import PEERS, Peer, Running, serving
from loadtest.race.results import Race, best_throughput, leg, markdown, read_race, runs_of
from loadtest.run import run_load
from loadtest.summary import summarise

QUICK_FIDELITY_EVERY = 20
FIDELITY = "fidelity"
"""What ``--only`` calls the comparison with the float32 reference."""
WARM = Scale(repeats=1, requests_per_stream=1, seconds=1.0)


class Racing:
    """Peers that are up, and what they have shown so far. ``race`` grows."""

    def __init__(self, race: Race, scale: Scale) -> None:
        self._race, self._scale = race, scale

    def warm(self, running: Running) -> None:
        """What a server sets up at its first requests is not what is measured."""
        run_load(courses.closed(2, WARM, seed=1), running.target)

    def fidelity(self, running: Running, golden: Golden, tokenizer: Path, every: int) -> None:
        self._race.fidelity[running.peer.name] = agreement(running.target, golden, tokenizer, every)

    def course(self, course: Course, peers: Sequence[Running]) -> None:
        """Every repeat of one course, peers in turn. Raises LoadError."""
        best = 0.0
        if course.share is not None:
            best = best_throughput(self._race, f"{courses.WIDTHS[-1]} streams") / courses.OUTPUT * course.share
        for round_ in range(self._scale.repeats):
            first = round_ % len(peers)
            for running in (*peers[first:], *peers[:first]):
                self._leg(course, running, best, peers)

    def _leg(self, course: Course, running: Running, rate: float, peers: Sequence[Running]) -> None:
        name = running.peer.name
        repeat = runs_of(self._race, course.title, name)
        before = [other.processor_seconds() for other in peers]
        scale = msgspec.structs.replace(self._scale, requests_per_stream=1) if running.peer.serial else self._scale
        result = run_load(course.make(rate, scale, seed_of(course, repeat)), running.target)
        busy = sum(
            after - was for after, was in zip((other.processor_seconds() for other in peers), before, strict=True)
        )
        own = running.processor_seconds() - before[peers.index(running)]
        done = leg(course.title, name, repeat, summarise(result), idlers=(busy - own) / busy if busy else 0.0)
        self._race.legs.append(done)
        sys.stderr.write(f"{repeat} {name:<12} {course.title:<52} {done.tokens_per_second:8.1f} tokens/s\n")


def _machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    cpu = next(
        (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")), platform.machine()
    )
    return f"{cpu}, {psutil.cpu_count(logical=False) or psutil.cpu_count()} cores, {memory:.0f} GiB"


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make race", description=__doc__)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--quick", action="store_true", help="once, briefly: shows that it works, not who is faster")
    parser.add_argument("--peer", action="append", choices=[peer.name for peer in PEERS], help="only these")
    names = [*(course.key for course in COURSES), FIDELITY]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="COURSE", help=f"only these: {', '.join(names)}"
    )
    parser.add_argument("--repeats", type=int, help=f"of each course (default: {courses.FULL.repeats})")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 2)
    parser.add_argument("--resume", action="store_true", help="add to what --output holds instead of beginning anew")
    parser.add_argument("--output", type=Path, default=HOME / "race.json")
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    # Ended from outside it still ends its servers and keeps what was measured.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        race = _race(arguments)
    except LoadError as error:
        sys.stderr.write(f"race: {error}\n")
        return 1
    sys.stdout.write(markdown(race, {peer.name: peer.label for peer in PEERS}))
    return 0


def _race(arguments: argparse.Namespace) -> Race:
    model = find_model(arguments.engine)
    golden = find_golden(read_manifest(model.engine).source.sha256)
    if golden is None:
        raise RaceError("no golden data of this checkpoint")
    scale = courses.QUICK if arguments.quick else courses.FULL
    if arguments.repeats is not None:
        scale = msgspec.structs.replace(scale, repeats=arguments.repeats)
    race = Race(_machine(), arguments.threads, arguments.quick)
    if arguments.resume and arguments.output.is_file():
        race = read_race(arguments.output, race)
    chosen = [peer for peer in PEERS if not arguments.peer or peer.name in arguments.peer]
    wanted = arguments.only or [*(course.key for course in COURSES), FIDELITY]
    try:
        with contextlib.ExitStack() as stack:
            peers = [up for peer in chosen if (up := _enter(stack, race, peer, model, arguments.threads))]
            if not peers:
                raise RaceError("nobody takes part")
            _run(Racing(race, scale), peers, wanted, golden, model.tokenizer, quick=arguments.quick)
    finally:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_bytes(msgspec.json.format(msgspec.json.encode(race), indent=1))
    return race


def _enter(stack: contextlib.ExitStack, race: Race, peer: Peer, model: RaceModel, threads: int) -> Running | None:
    """Bring a peer up for as long as the stack lives; one that cannot take part is named and left out."""
    try:
        running = stack.enter_context(serving(peer, model, threads))
    except RaceError as error:
        race.absent[peer.name] = str(error)
        sys.stderr.write(f"{peer.name} is left out: {error}\n")
        return None
    race.absent.pop(peer.name, None)
    race.versions[peer.name] = ", ".join(peer.requirements) or "this checkout"
    return running


def _run(
    racing: Racing, peers: Sequence[Running], wanted: Sequence[str], golden: Golden, tokenizer: Path, *, quick: bool
) -> None:
    for running in peers:
        racing.warm(running)
    for course in COURSES:
        if course.key in wanted:
            racing.course(course, peers)
    if FIDELITY in wanted:
        for running in peers:
            racing.fidelity(running, golden, tokenizer, QUICK_FIDELITY_EVERY if quick else 1)


if __name__ == "__main__":
    sys.exit(main())
