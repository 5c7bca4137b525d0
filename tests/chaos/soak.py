"""`make chaos SECONDS=…`: a real server process under everything that goes wrong at once, and the laws that must hold nevertheless.

In lives, one process each, mostly over simulated engines whose every prompt has one right answer: rounds of load and trouble, after each of which what is held
must go back to nothing. A life ends by a hung step, by SIGKILL, or by a drain under load; the last one runs the embedded engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.laws import Books, Tally, check_log, settle
from tests.chaos.process import Server
from tests.chaos.storm import BREEZE, PROMPTS, STORM, Storm, Weather

SIMULATED = ("simulated:steady", "simulated-executor:steady")
"""Swapped in turn: they speak one language, so that every prompt has one right answer."""
DEFAULT_ENGINE = Path("engine-cache/smollm2-gguf")
SMALL_POOL = ("--engine.kv_bytes", str(256 * 2**20))
"""Of which every block is written soon: memory that is committed late would look like a leak."""


@dataclass(frozen=True)
class Life:
    """One process: how long, relative to the others, and how it ends."""

    share: float
    end: str


SIMULATED_LIVES = (Life(0.5, "hang"), Life(0.15, "kill"), Life(0.15, "drain"))
EMBEDDED_SHARE = 0.2


@contextlib.asynccontextmanager
async def storm(
    engine: str, weather: Weather, seed: int, tally: Tally, *knobs: str, engines: tuple[str, ...] | None = None
) -> AsyncIterator[Storm]:
    """A server that is ready, and the storm that may begin. What the log must not tell is checked at the end."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), engine, *knobs)
        await server.start()
        try:
            yield Storm(server, tally, random.Random(seed), weather, engines or (engine,))  # noqa: S311 - dice
        finally:
            await server.kill()
            check_log(server, tally, secrets=PROMPTS)


async def live(made: Storm, seconds: float, what: str) -> None:
    """Rounds until the time is over, with the books checked after each."""
    length, books, end = min(20.0, max(4.0, seconds / 12)), Books(), time.monotonic() + seconds
    while time.monotonic() < end or not books.memory:
        await made.round(length)
        await settle(made.server, books, made.tally)
    say(books.close(made.tally, what), f"ready after {made.server.ready_after:.1f} s, {dict(made.tally.outcomes)}")


async def soak(seconds: float, seed: int, weather: Weather, engine: Path) -> int:
    """Every life, then the verdict: the exit status."""
    tally = Tally()
    embedded = await asyncio.to_thread(engine.is_dir)
    share = 1 - EMBEDDED_SHARE if embedded else 1.0
    total = sum(life.share for life in SIMULATED_LIVES)
    async with storm(SIMULATED[0], weather, seed, tally, engines=SIMULATED) as made:
        await made.learn()
        for number, life in enumerate(SIMULATED_LIVES):
            await live(made, seconds * share * life.share / total, f"life {number + 1}, simulated, then {life.end}")
            await getattr(made, life.end)()
            say(f"after {life.end}")
    if embedded:
        knobs = SMALL_POOL
        calm = Weather(min(6, weather.clients), 16, weather.victims * 2, weather.swaps * 8, weather.faults * 2)
        async with storm(str(engine), calm, seed, tally, *knobs) as made:
            await live(made, seconds * EMBEDDED_SHARE, f"{engine.name}, then drain")
            await made.drain()
    else:
        say(f"without the embedded engine: there is none in {engine}; `firsttoken build` makes it")
    processor = sum(resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime for who in WHO)
    say(f"seed {seed}, {processor:.0f} s of processor time, {dict(tally.outcomes)}")
    for law in tally.broken:
        say(f"BROKEN: {law}")
    return 1 if tally.broken else 0


WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


BEGAN = time.monotonic()


def say(*words: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.0f} s", *words, sep="  ", flush=True)  # noqa: T201 - a command's output


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gentle", action="store_true", help="everything happens, less often: a quarter of a core")
    parser.add_argument("--engine", type=Path, default=DEFAULT_ENGINE, help="the embedded engine; default: %(default)s")
    asked = parser.parse_args()
    return asyncio.run(soak(asked.seconds, asked.seed, BREEZE if asked.gentle else STORM, asked.engine))


if __name__ == "__main__":
    sys.exit(main())
