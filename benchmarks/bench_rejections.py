"""How soon a request is refused while the engine is busy: a real server, real sockets, 200 requests a second for five seconds each way.

Every seat streams. Then, by a clock that waits for nobody: requests whose deadline the forecast says they would miss while one place in
the waiting room is left; and, once that is taken too, any request. A refusal's time counts from the moment at which its request was
due, so what the sender is late by counts too. The engine is the default one, on this machine's own cores, which it shares with server
and client; the client is the load generator's, which reads HTTP/2 straight off the socket. About 18 seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import msgspec

from benchmarks.figure import Figure, at_least, at_most
from benchmarks.served import serving
from loadtest.record import Usage
from loadtest.statistics import spread
from loadtest.transports.base import Ask, Call, Target
from loadtest.transports.native import NativeTransport
from tests.engines_built import default_engine

RATE, SECONDS = 200, 5.0
SEATS, ROOM = 4, 8
PROMPT = "Say what it takes to be told no quickly, and why that is kinder than a long wait. " * 8
LIMIT = 10e-3
PATIENCE = 5.0
"""Seconds until whatever must have happened by now has failed to."""
FLAGS = (
    *("--scheduler.max_sequences", str(SEATS)),
    *("--admission.max_waiting_requests", str(ROOM)),
    *("--telemetry.log_requests", "false", "--telemetry.log_level", "error"),
)


def figures() -> list[Figure]:
    with serving(str(default_engine()), *FLAGS) as server:
        found = asyncio.run(_refusals(server.address))
    figures = []
    for reason, (seconds, rate) in found.items():
        label = f"refused for {reason}, the default engine busy"
        figures.append(at_least(f"{label}: refusals a second", 0.98 * RATE, rate, ""))
        measured = spread(seconds)
        figures.append(at_most(f"{label}: p99", 1e3 * LIMIT, 1e3 * measured.p99 if measured else float("inf"), "ms"))
    return figures


async def _refusals(address: str) -> dict[str, tuple[list[float], float]]:
    """By reason: the seconds that each refusal took, and how many came a second."""
    wire = NativeTransport(Target("native", address))
    await wire.open()
    try:
        async with _busy(wire, SEATS, waiting=0), _busy(wire, ROOM - 1, waiting=ROOM - 1):
            late = await _flood(wire, _ask(16, ttft_deadline=1e-3))
            async with _busy(wire, 1, waiting=ROOM):
                full = await _flood(wire, _ask(16))
    finally:
        await wire.close()
    return {"its deadline": late, "a full room": full}


def _ask(max_tokens: int, ttft_deadline: float | None = None) -> Ask:
    return Ask(
        ids=None,
        text=PROMPT,
        max_tokens=max_tokens,
        priority="interactive",
        salt="",
        ttft_deadline=ttft_deadline,
        deadline=None,
        ignore_end=True,
        stalls=False,
    )


class Outcome:
    """What became of one request. Implements Measurement."""

    def __init__(self) -> None:
        self.over: float | None = None
        self.ended = asyncio.Event()
        self.status = ""

    def on_content(self, tokens: int, now: float, *, ids: list[int] | None = None, text: str = "") -> None: ...

    def on_usage(self, usage: Usage) -> None: ...

    def on_over(self, status: str, detail: str, now: float) -> None:
        self.over, self.status = now, f"{status} {detail}".rstrip()
        self.ended.set()


class _Sent(msgspec.Struct):
    due: float
    outcome: Outcome
    call: Call

    def taken(self) -> float:
        """Seconds until it was refused. Raises RuntimeError where it was not."""
        if self.outcome.over is None or not self.outcome.status.startswith("RESOURCE_EXHAUSTED"):
            raise RuntimeError(f"a request was to be refused, it was: {self.outcome.status or 'let in'}")
        return self.outcome.over - self.due


@contextlib.asynccontextmanager
async def _busy(wire: NativeTransport, count: int, *, waiting: int) -> AsyncIterator[None]:
    """So many more requests, each longer than the measurement; entered when all seats stream and ``waiting`` wait.

    Raises RuntimeError where it does not come to that, and afterwards where one of them ended on its own: then there was room.
    """
    ask = _ask(6000)
    body = wire.encode(ask)
    held = [_Sent(0.0, outcome := Outcome(), await wire.start(ask, body, outcome)) for _ in range(count)]
    try:
        until = time.monotonic() + PATIENCE
        while (load := await wire.load()) is None or (load.running, load.waiting) != (SEATS, waiting):
            if time.monotonic() > until:
                raise RuntimeError(
                    f"{SEATS} were to run and {waiting} to wait, it is {load}; {[s.outcome.status for s in held]}"
                )
            await asyncio.sleep(0.05)
        yield
        if ended := [sent.outcome.status for sent in held if sent.outcome.over is not None]:
            raise RuntimeError(f"requests that were to keep the engine busy ended: {ended}")
    finally:
        for sent in held:
            sent.call.cancel("CANCELLED", "measured")


async def _flood(wire: NativeTransport, ask: Ask) -> tuple[list[float], float]:
    """Seconds of each refusal, and refusals a second."""
    body, sent = wire.encode(ask), list[_Sent]()
    began = time.monotonic()
    for number in range(int(RATE * SECONDS)):
        due = began + number / RATE
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        outcome = Outcome()
        sent.append(_Sent(due, outcome, await wire.start(ask, body, outcome)))
    with contextlib.suppress(TimeoutError):  # whoever was let in does not end: taken() says so
        await asyncio.wait_for(asyncio.gather(*(each.outcome.ended.wait() for each in sent)), PATIENCE)
    seconds = [each.taken() for each in sent]
    return seconds, len(seconds) / (max(each.outcome.over or 0.0 for each in sent) - began)
