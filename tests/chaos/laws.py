"""What must hold under fire, and the tally of what happened."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.process import TOKEN, Server

HELD = (
    "open_streams",
    "running_sequences",
    "queued_requests",
    "waiting_tokens",
    'kv_blocks{state="in_use"}',
    'kv_blocks{state="quarantined"}',
)
"""Metrics that are 0 when nobody asks for anything."""
QUIET = 60.0
"""Seconds for everything to be given back, on a machine that does much else."""
SAVES = ("saved", "failed")
RSS_GROWTH, RSS_RISE = 1.02, 1.1
ROUNDS_TO_JUDGE = 18
"""In fewer rounds the allocator is still spreading out: then memory may rise by RSS_RISE, which only a gross leak exceeds."""
MOST = {"asyncio_": 32, "uvloop_": 32, "engine": 1, "engine-feed": 1, "simulated-executor": 1}
"""Threads whose number has a bound of its own: the event loop's pool, which grows and stays; the engine's, which a swap may change."""
BEFORE, AFTER = 1.0, 0.5
"""Seconds by which a fault may show at a request that began after it was thrown, or ended before that was noted."""


@dataclass
class Trouble:
    """Something that may cost requests their answer, from when until when (time.monotonic())."""

    began: float
    ended: float = float("inf")


@dataclass
class Tally:
    """What happened, and which laws did not hold."""

    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)

    def count(self, outcome: str, *, wrong: str | bool = False) -> None:
        self.outcomes[outcome] += 1
        if wrong:
            self.broken.append(str(wrong))

    def troubled(self, began: float) -> bool:
        """Whether a request that ran from ``began`` until now can have met with trouble."""
        now = time.monotonic()
        return any(one.began - AFTER <= now and began - BEFORE <= one.ended for one in self.troubles)


@dataclass
class Books:
    """One process's account, kept from round to round."""

    memory: list[float] = field(default_factory=list)
    saves: Counter[str] = field(default_factory=Counter)
    """Of the cache, by outcome, seen after some round."""
    reference: dict[str, Any] | None = None
    """What it held after its first round: more than that later is a leak."""
    looks: int = 0
    """Times that the engine's books were looked at."""

    @property
    def growth(self) -> float:
        """Resident memory at the end, over that after the warm-up, the first half of the rounds: medians of three rounds each, since an engine
        that has just been swapped in has not yet touched all that it owns."""
        warm = len(self.memory) // 2
        return statistics.median(self.memory[-3:]) / statistics.median(self.memory[warm : warm + 3])

    def close(self, tally: Tally, what: str) -> str:
        """The life is over; a line about it."""
        if not self.memory:
            return f"{what}: no round"
        if not self.looks:
            tally.broken.append(f"{what}: nobody looked at the engine's books")
        limit = RSS_GROWTH if len(self.memory) >= ROUNDS_TO_JUDGE else RSS_RISE
        if self.growth > limit:
            tally.broken.append(f"{what}: memory grew by the factor {self.growth:.3f}, the limit is {limit}")
        if len(self.memory) >= ROUNDS_TO_JUDGE and not all(self.saves[outcome] for outcome in SAVES):
            tally.broken.append(f"{what}: saves of the cache were {dict(self.saves)}: of both kinds there must be some")
        curve = " ".join(f"{size / 2**20:.0f}" for size in self.memory)
        return f"{what}: {len(self.memory)} rounds, x {self.growth:.3f}, MiB {curve}"


async def check_restored(server: Server, tally: Tally, outcome: str) -> None:
    """What the process that has just started made of the file that it found."""
    metrics = await server.metrics()
    found = [name for name, count in metrics.items() if name.startswith("cache_restores_total{") and count]
    tally.count(
        f"cache {outcome}", wrong=found != [f'cache_restores_total{{outcome="{outcome}"}}'] and f"cache: {found}"
    )


async def settle(server: Server, books: Books, tally: Tally) -> None:
    """Nobody asks for anything: everything must be given back, and nothing may have broken."""
    deadline = time.monotonic() + QUIET
    gc.collect()  # our own clients' connections close with their last reference
    while problems := _held(await server.metrics()) + _leaked(found := await server.control("inspect"), books):
        tally.broken += found["broken"]
        if time.monotonic() > deadline:
            tally.broken.append(f"still held {QUIET:g} s after the last request: {problems}")
            break
        await asyncio.sleep(0.1)
    tally.broken += found["broken"]
    books.reference = books.reference or await _reference(server)
    books.memory.append(found["rss"])
    now = await server.metrics()
    books.saves |= Counter({outcome: int(now.get(f'cache_saves_total{{outcome="{outcome}"}}', 0)) for outcome in SAVES})
    books.looks += found["looks"]
    metrics = await server.metrics()
    faults = [name for name in metrics if name.startswith("requests_total{") and 'outcome="error"' in name]
    if any(metrics[name] for name in faults) or not metrics["ready"]:
        tally.broken.append(f"internal errors {faults}, ready={metrics['ready']}")


async def _reference(server: Server) -> dict[str, Any]:
    """What the process holds once no more connections close."""
    found = await server.control("inspect")
    while True:
        await asyncio.sleep(1.0)
        before, found = found, await server.control("inspect")
        if found["files"] == before["files"]:
            return found


def _held(metrics: dict[str, float]) -> list[str]:
    return [f"{name}={metrics[name]:g}" for name in HELD if metrics[name]]


def _leaked(found: dict[str, Any], books: Books) -> list[str]:
    """What the process holds beyond what it held after its first round."""
    problems = [f"{name}={found[name]}" for name in ("alive", "streams") if found[name]]
    if found["engines"] != 1:
        problems.append(f"engines={found['engines']}")
    if books.reference is None:
        return problems
    for kind in ("tasks", "threads", "files"):
        beyond = Counter(found[kind]) - Counter(books.reference[kind])
        problems += [
            f"{kind} beyond the first round's: {name} x {count}"
            for name, count in beyond.items()
            if kind != "threads" or found[kind][name] > MOST.get(name, 0)
        ]
    return problems


def check_log(server: Server, tally: Tally, *, secrets: tuple[str, ...]) -> None:
    """Neither tokens nor prompts in any line, whatever went wrong; no defect of ours."""
    log = server.log()
    tally.broken += [f"the log tells {secret!r}" for secret in (TOKEN, *secrets) if secret in log]
    tally.broken += [line[:400] for line in log.splitlines() if "internal error" in line or "never awaited" in line]
