"""What the load client itself can take, and what it adds: against a source of messages that costs next to nothing.

Throughput: 64 streams as fast as the socket gives them, one client process, all of `firsttoken load` at work (driver, records,
progress). Delay: 64 streams of one token each 20 ms, all sent in one burst as an engine's step is; from the source's stamp to
the client's, so that the kernel and the waiting for one's turn in the burst are in it. Nothing is subtracted from any figure.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.figure import Figure, at_least
from benchmarks.token_source import STAMP_BITS, stamp
from loadtest.distributions import Distribution
from loadtest.record import Usage
from loadtest.run import run_load
from loadtest.transports.base import Ask, Target
from loadtest.transports.native import NativeTransport
from loadtest.workload import Lengths, Workload

STREAMS = 64
REPEATS = 3
BLAST_TOKENS = 6000
PACED_TOKENS = 250
INTERVAL = 0.02
FLOOR = 20_000


@contextlib.contextmanager
def source(interval: float) -> Iterator[Target]:
    command = [sys.executable, "-m", "benchmarks.token_source", "--interval", str(interval)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        yield Target("native", f"127.0.0.1:{process.stdout.readline().strip()}")
        process.stdin.close()


def messages_per_second() -> float:
    """Of one client process."""
    tokens = Distribution("constant", {"value": float(BLAST_TOKENS)})
    workload = Workload(
        concurrency=STREAMS, requests=STREAMS, lengths=Lengths(Distribution("constant", {"value": 16.0}), tokens)
    )
    with source(0.0) as target:
        records = run_load(workload, target).records
    if any(len(record.times) != BLAST_TOKENS for record in records):
        raise RuntimeError("messages were lost")
    span = max(record.end for record in records) - min(record.sent for record in records)
    return STREAMS * BLAST_TOKENS / span


class Delays:
    """Compares each message's stamp with the moment at which the client says that it came."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_content(self, _tokens: int, now: float, *, ids: list[int] | None = None, text: str = "") -> None:  # noqa: ARG002
        seen = int(now * 1e6) & ((1 << STAMP_BITS) - 1)
        self.seconds.append(((seen - (ids or [stamp()])[0]) % (1 << STAMP_BITS)) / 1e6)

    def on_usage(self, usage: Usage) -> None: ...

    def on_over(self, status: str, _detail: str, _now: float) -> None:
        self.over.set_result(status)


async def delays() -> list[float]:
    """Seconds from sending to the client's stamp, of every message of 64 paced streams."""
    with source(INTERVAL) as target:
        transport = NativeTransport(target)
        await transport.open()
        ask = Ask(np.arange(16, dtype=np.int32), None, PACED_TOKENS, "interactive", "", None, None, True, False)
        body = transport.encode(ask)
        streams = [Delays() for _ in range(STREAMS)]
        for stream in streams:
            await transport.start(ask, body, stream)
        for stream in streams:
            if (status := await stream.over) != "OK":
                raise RuntimeError(status)
        await transport.close()
    return [second for stream in streams for second in stream.seconds]


def figures() -> list[Figure]:
    rates = [messages_per_second() for _ in range(REPEATS)]
    seconds = [value for _ in range(REPEATS) for value in asyncio.run(delays())]
    p50, p99 = (float(value) * 1e3 for value in np.percentile(seconds, (50, 99)))
    rate = float(np.median(rates))
    return [
        at_least("load client: token messages a second, one process", FLOOR, rate, "/s"),
        Figure("load client: own delay p50, 64 streams paced at 20 ms", "stated", f"{p50:.2f} ms", True),
        Figure("load client: own delay p99, 64 streams paced at 20 ms", "stated", f"{p99:.2f} ms", True),
    ]
