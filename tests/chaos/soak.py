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
SMALL_POOL = ("--engine.kv_bytes", str(192 * 2**20))
"""A pool that holds one longest sequence of the default engine."""
FILLING, SIMULATED_FILLING = (2, 4_000), (17, 8_000)
"""Prompts and their tokens that fill the embedded engine's pool, and a simulated one's of 4,096 blocks. A pool that is not full grows, and what the
server keeps of each block with it, also through swaps: the cache is saved and restored."""
WORTH_FILLING = 60.0
"""Seconds of a life in which there can be rounds enough to judge its memory."""


@dataclass(frozen=True)
class Life:
    """One process: its part of the time, and how it ends."""

    share: float
    end: str


LIVES = (Life(0.5, "hang"), Life(0.15, "kill"), Life(0.15, "drain"))
EMBEDDED = Life(0.2, "drain")
ENDS = {"hang": 14.0, "kill": 7.0, "drain": 5.0}
"""Seconds that an end takes, the next start included."""


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


async def live(made: Storm, until: float, what: str, filling: tuple[int, int]) -> None:
    """Rounds until then, with the books checked after each."""
    if until - time.monotonic() > WORTH_FILLING:
        await made.fill(*filling)
    length, books = min(10.0, max(4.0, (until - time.monotonic()) / 20)), Books()
    while time.monotonic() + length < until or not books.memory:
        await made.round(length)
        await settle(made.server, books, made.tally)
    say(books.close(made.tally, what), f"ready after {made.server.ready_after:.1f} s, {dict(made.tally.outcomes)}")


class Clock:
    """Shares the time that is left among the lives that are left, and keeps some for their ends."""

    def __init__(self, seconds: float, lives: tuple[Life, ...]) -> None:
        self._end = time.monotonic() + seconds
        self._left = list(lives)

    def until(self) -> float:
        """When the next life's rounds are over."""
        life, now = self._left[0], time.monotonic()
        free = self._end - now - sum(ENDS[one.end] for one in self._left)
        share = life.share / sum(one.share for one in self._left)
        self._left.pop(0)
        return now + max(0.0, free * share)


async def soak(seconds: float, seed: int, weather: Weather, engine: Path) -> int:
    """Every life, then the verdict: the exit status."""
    tally, embedded = Tally(), await asyncio.to_thread(engine.is_dir)
    clock = Clock(seconds, (*LIVES, EMBEDDED) if embedded else LIVES)
    async with storm(SIMULATED[0], weather, seed, tally, engines=SIMULATED) as made:
        await made.learn()
        for number, life in enumerate(LIVES):
            await live(made, clock.until(), f"life {number + 1}, simulated, then {life.end}", SIMULATED_FILLING)
            await getattr(made, life.end)()
    if embedded:
        calm = Weather(min(6, weather.clients), 16, weather.victims * 2, weather.swaps * 8, weather.faults * 2)
        async with storm(str(engine), calm, seed, tally, *SMALL_POOL) as made:
            await live(made, clock.until(), f"{engine.name}, then {EMBEDDED.end}", FILLING)
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
