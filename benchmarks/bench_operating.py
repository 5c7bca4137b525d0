"""What operating it costs: processor time per token with everything on, against everything off.

Two server processes over the same simulated engine get the same batches of streams in turn; each batch's processor time is the kernel's account of the process.
On: a log line a request, the recording, tokens and limits, traces of the default share sent to a collector, a scrape of /metrics a batch. Metrics and the flight recorder cannot
be turned off and are in both. The engine's own time is in both, too, and is small; a real model's would make the ratio smaller still. The figure is the median
of the ratios of neighbouring batches.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import urllib.request
from pathlib import Path

import psutil

from benchmarks.figure import Figure, at_most
from benchmarks.served import Served, serving
from benchmarks.trace_sink import trace_sink
from firsttoken.client import AsyncClient
from server.access.directory import hash_token

ENGINE, TOKEN = "simulated:steady", "bench"
STREAMS, TOKENS, BATCHES = 16, 128, 9
LIMIT = 1.15

OFF = ("--telemetry.log_requests", "false", "--telemetry.log_level", "error")


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, trace_sink() as sink:
        on = _everything_on(Path(folder), sink.endpoint)
        with serving(ENGINE, *on) as guarded, serving(ENGINE, *OFF) as bare:
            ratios = asyncio.run(_ratios(guarded, bare))
    if not sink.spans:
        raise RuntimeError("no trace came: the figure would be that of a server that makes none")
    return [
        at_most("operating: processor time per token, everything on / off", LIMIT, statistics.median(ratios), ""),
    ]


def _everything_on(folder: Path, collector: str) -> tuple[str, ...]:
    access = folder / "access.toml"
    access.write_text(
        f'[tenants.bench]\ntokens = [{{ sha256 = "{hash_token(TOKEN)}" }}]\n'
        "requests_per_minute = 1000000\ntokens_per_minute = 1000000000\nmax_concurrent = 1000\n"
    )
    logs = ("--telemetry.log_requests", "true", "--telemetry.log_format", "json", "--telemetry.log_level", "info")
    recording = ("--telemetry.recording", str(folder / "traffic.jsonl"), "--telemetry.otlp_endpoint", collector)
    return (*logs, *recording, "--access.file", str(access))


async def _ratios(guarded: Served, bare: Served) -> list[float]:
    async with AsyncClient(guarded.address, token=TOKEN) as with_all, AsyncClient(bare.address) as without:
        await _batch(with_all, guarded, scraped=True)
        await _batch(without, bare)
        return [await _batch(with_all, guarded, scraped=True) / await _batch(without, bare) for _ in range(BATCHES)]


async def _batch(client: AsyncClient, served: Served, *, scraped: bool = False) -> float:
    """Seconds of processor per token."""
    before = _spent(served.process)
    prompts = (f"stream {number}: " + "words " * 20 for number in range(STREAMS))
    await asyncio.gather(*(client.generate(prompt, max_tokens=TOKENS).text() for prompt in prompts))
    if scraped:
        await asyncio.to_thread(lambda: urllib.request.urlopen(f"{served.http}/metrics").read())  # noqa: S310 - our own loopback address
    return (_spent(served.process) - before) / (STREAMS * TOKENS)


def _spent(process: int) -> float:
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)
