"""A client that asks many prompts at once and says when each token came. Runs in a process of its own.

It speaks through the load tool's transport, whose cost per message is a tenth of grpc.aio's, on the server's kind of event loop: the
client shares the cores with the server that is measured, and what it takes would be blamed on the server.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import msgspec
import numpy as np

from loadtest.record import Usage
from loadtest.transports.base import Ask, Target
from loadtest.transports.native import NativeTransport
from server.event_loop import loop_factory


class ServedRun(msgspec.Struct, frozen=True):
    """Seconds. Times are the client's, from just before the first request was sent."""

    ttfts: list[float]
    gaps: list[float]
    tokens_per_second: float


class Arrivals:
    """When each token of one call arrived, ``time.monotonic()``. Implements loadtest.transports.base.Measurement."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_content(self, tokens: int, now: float, *, ids: list[int] | None = None, text: str = "") -> None:  # noqa: ARG002 - the measurement's signature
        self.times += [now] * tokens

    def on_usage(self, usage: Usage) -> None: ...

    def on_over(self, status: str, detail: str, now: float) -> None:  # noqa: ARG002 - the measurement's signature
        self.over.set_result(f"{status} {detail}".rstrip())


def answer(address: str, pipe: Connection) -> None:
    """For each (prompts, max_tokens) that comes through the pipe, ask them all at once and send the ServedRun back; None ends it."""
    with asyncio.Runner(loop_factory=loop_factory(uvloop=True)) as loop:
        loop.run(_answer(address, pipe))


async def _answer(address: str, pipe: Connection) -> None:
    transport = NativeTransport(Target("native", address))
    await transport.open()
    while (asked := await asyncio.to_thread(pipe.recv)) is not None:
        pipe.send(await ask_all(transport, *asked))
    await transport.close()


async def ask_all(transport: NativeTransport, prompts: Sequence[Sequence[int]], max_tokens: int) -> ServedRun:
    """Raises RuntimeError where a call does not end well."""
    started = time.monotonic()
    arrivals = await asyncio.gather(*(_ask(transport, prompt, max_tokens) for prompt in prompts))
    end = max(times[-1] for times in arrivals)
    gaps = [b - a for times in arrivals for a, b in itertools.pairwise(times)]
    return ServedRun([times[0] - started for times in arrivals], gaps, sum(map(len, arrivals)) / (end - started))


async def _ask(transport: NativeTransport, prompt: Sequence[int], max_tokens: int) -> list[float]:
    """When each token arrived."""
    arrivals = Arrivals()
    ask = Ask(
        ids=np.asarray(prompt, dtype=np.int32),
        text=None,
        max_tokens=max_tokens,
        priority="standard",
        salt="",
        ttft_deadline=None,
        deadline=None,
        ignore_end=False,
        stalls=False,
    )
    await transport.start(ask, transport.encode(ask), arrivals)
    if (status := await arrivals.over) != "OK":
        raise RuntimeError(f"a call ended with {status}")
    return arrivals.times
