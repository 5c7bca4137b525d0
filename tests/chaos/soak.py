"""`make chaos SECONDS=…`: a real server process under everything that goes wrong at once, and the laws that must hold nevertheless.

Rounds of load with random cancels, deadlines, wrong tokens, clients that are killed and clients that do not read, while certificates are rotated and the engine
is swapped. After each round the load stops, and what is held must go back to nothing; at the end the server drains under load.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from firsttoken.client import (
    AccessError,
    AsyncClient,
    CallError,
    DeadlineError,
    GenerateOptions,
    OverloadedError,
    Tls,
    UnavailableError,
)
from server.access.directory import hash_token

ENGINES = ("simulated:steady", "simulated:steady")
"""Swapped in turn: of one fingerprint, so that every prompt has one right answer."""
PROMPTS = tuple(f"Question {number}: " + "why is that so? " * number for number in range(1, 9))
TOKEN, STALL = "chaos-token", 3.0
HELD = (
    "open_streams",
    "running_sequences",
    "queued_requests",
    'kv_blocks{state="in_use"}',
    'kv_blocks{state="quarantined"}',
)
"""Metrics that are 0 when nobody asks for anything."""
QUIET = 30.0
"""Seconds for everything to be given back."""
RSS_GROWTH = 1.02
VICTIM = """
import sys
from firsttoken.client import Client, Tls
with Client(sys.argv[1], tls=Tls.from_files(sys.argv[2]), token=sys.argv[3]) as client:
    for _ in client.generate("a client that is going to be killed", max_tokens=4000):
        print("streaming", flush=True)
"""


@dataclass
class Tally:
    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    """Laws that did not hold."""


class Server:
    """`firsttoken serve` with TLS and tokens, and the files that it watches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.rotate()
        (folder / "ca.pem").write_bytes(self.ca.cert_pem.bytes())
        (folder / "access.toml").write_text(
            f'[tenants.chaos]\ntokens = [{{ sha256 = "{hash_token(TOKEN)}" }}]\noperator = true\n'
        )
        self.grpc_port, self.http_port = _free_port(), _free_port()
        self.process: asyncio.subprocess.Process | None = None

    def rotate(self) -> None:
        """A new certificate of the same authority, each file replaced whole."""
        issued = self.ca.issue_cert("localhost")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        for name, content in (("server.pem", chain), ("server.key", issued.private_key_pem.bytes())):
            fresh = self.folder / f"{name}.new"
            fresh.write_bytes(content)
            fresh.replace(self.folder / name)

    async def start(self) -> None:
        knobs = {
            "grpc.port": self.grpc_port,
            "http.port": self.http_port,
            "tls.certificate": self.folder / "server.pem",
            "tls.key": self.folder / "server.key",
            "access.file": self.folder / "access.toml",
            "limits.reader_stall": STALL,
            "telemetry.log_requests": "false",
            "telemetry.log_level": "error",
            "telemetry.recording": self.folder / "traffic.jsonl",
        }
        flags = [part for name, value in knobs.items() for part in (f"--{name}", str(value))]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTTOKEN_")}
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "firsttoken.cli", "serve", ENGINES[0], *flags, env=environment
        )
        async with self.client() as client:
            await client.wait_ready(120)

    def client(self, token: str = TOKEN) -> AsyncClient:
        return AsyncClient(self.address, tls=Tls.from_files(self.folder / "ca.pem"), token=token)

    @property
    def address(self) -> str:
        return f"localhost:{self.grpc_port}"

    async def metrics(self) -> dict[str, float]:
        text = await asyncio.to_thread(_get, f"http://127.0.0.1:{self.http_port}/metrics")
        lines = re.findall(r"^(?:firsttoken_)?(\S+) (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in lines}


class Chaos:
    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.tally = Tally()
        self.memory: list[float] = []
        self.files: list[float] = []
        self._rng = random.Random(seed)  # noqa: S311 - dice that can be thrown again
        self._truth: dict[str, str] = {}
        self._stop = asyncio.Event()

    async def learn(self) -> None:
        """What each prompt's answer is, while nothing disturbs."""
        async with self.server.client() as client:
            for prompt in PROMPTS:
                self._truth[prompt] = await client.generate(prompt, max_tokens=64).text()

    async def round(self, seconds: float) -> None:
        """Everything at once, then nothing; then nothing may be held."""
        self._stop = asyncio.Event()
        work = [self._requests() for _ in range(24)]
        work += [self._stalled(), self._killed(), self._strangers(), self._rotations(), self._swaps()]
        tasks = [asyncio.ensure_future(one) for one in work]
        await asyncio.sleep(seconds)
        self._stop.set()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException):
                self.tally.broken.append(f"unexpected: {result!r}")
        await self._quiet()

    async def drain(self) -> None:
        """SIGTERM under load: streams that run end well, new ones get UNAVAILABLE, exit 0."""
        async with self.server.client() as client:
            calls = [asyncio.ensure_future(self._judged(client, PROMPTS[at % 8], None)) for at in range(32)]
            await asyncio.sleep(0.3)
            process = self.server.process
            if process is None:
                raise RuntimeError("the server was not started")
            process.send_signal(signal.SIGTERM)
            await asyncio.gather(*calls)
            status = await asyncio.wait_for(process.wait(), 60)
        if status:
            self.tally.broken.append(f"exit status {status} after SIGTERM")

    # ------------------------------------------------------------------ what goes on

    async def _requests(self) -> None:
        async with self.server.client() as client:
            while not self._stop.is_set():
                prompt = self._rng.choice(PROMPTS)
                kind = self._rng.random()
                if kind < 0.25:
                    await self._cancelled(client, prompt)
                else:
                    await self._judged(client, prompt, self._rng.uniform(0.01, 0.3) if kind < 0.45 else None)

    async def _judged(self, client: AsyncClient, prompt: str, seconds: float | None) -> None:
        try:
            limits: GenerateOptions = {"max_tokens": 64}
            if seconds is not None:
                limits["timeout"] = seconds
            text = await client.generate(prompt, **limits).text()
        except DeadlineError:
            self._count("deadline", wrong=seconds is None and "a deadline that nobody set")
        except (OverloadedError, UnavailableError) as error:
            self._count(error.status.lower())
        except CallError as error:
            self._count("error", wrong=f"{error.status}: {error}")
        else:
            self._count("ok", wrong=text != self._truth[prompt] and f"another answer: {text[:40]!r}")

    async def _cancelled(self, client: AsyncClient, prompt: str) -> None:
        stream = client.generate(prompt, max_tokens=64)
        with contextlib.suppress(CallError):
            async for delta in stream:
                if delta.text and self._rng.random() < 0.2:
                    break
        stream.close()
        self._count("cancelled")

    async def _stalled(self) -> None:
        """Connections that say nothing, half a greeting, or HTTP/1; the window of a reader that stops is tests/rpc/test_slow_reader.py's."""
        while not self._stop.is_set():
            for greeting in (b"", b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\n\r\n"):
                _, writer = await asyncio.open_connection("127.0.0.1", self.server.grpc_port)
                writer.write(greeting)
                await asyncio.sleep(0.2)
                writer.close()
            self._count("rude")

    async def _killed(self) -> None:
        while not self._stop.is_set():
            arguments = (self.server.address, str(self.server.folder / "ca.pem"), TOKEN)
            victim = await asyncio.create_subprocess_exec(
                sys.executable, "-c", VICTIM, *arguments, stdout=asyncio.subprocess.PIPE
            )
            if victim.stdout is not None:
                await victim.stdout.readline()
            victim.kill()
            await victim.wait()
            self._count("killed")

    async def _strangers(self) -> None:
        while not self._stop.is_set():
            async with self.server.client("wrong") as client:
                try:
                    await client.generate("x", max_tokens=1).text()
                except AccessError:
                    self._count("refused")
                else:
                    self._count("refused", wrong="a wrong token got in")
            await asyncio.sleep(0.2)

    async def _rotations(self) -> None:
        while not self._stop.is_set():
            await asyncio.to_thread(self.server.rotate)
            self._count("rotated")
            await asyncio.sleep(1.5)

    async def _swaps(self) -> None:
        turn = 0
        async with self.server.client() as client:
            while not self._stop.is_set():
                turn += 1
                await client.load_engine(ENGINES[turn % len(ENGINES)])
                self._count("swapped")
                await asyncio.sleep(2)

    # ------------------------------------------------------------------ the laws

    async def _quiet(self) -> None:
        deadline = time.monotonic() + QUIET
        while True:
            metrics = await self.server.metrics()
            held = {name: metrics[name] for name in HELD if metrics[name]}
            if not held:
                break
            if time.monotonic() > deadline:
                self.tally.broken.append(f"still held {QUIET:g} s after the last request: {held}")
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)  # connections close
        metrics = await self.server.metrics()
        self.memory.append(metrics["process_resident_memory_bytes"])
        self.files.append(metrics["process_open_fds"])
        faults = [
            name
            for name in metrics
            if name.startswith("requests_total{") and 'outcome="error"' in name and metrics[name]
        ]
        if faults or not metrics["ready"]:
            self.tally.broken.append(f"internal errors {faults}, ready={metrics['ready']}")

    def growth(self) -> float:
        """Resident memory after the last round, over that after the warm-up: the first third of the rounds."""
        return self.memory[-1] / self.memory[len(self.memory) // 3]

    def _count(self, outcome: str, *, wrong: str | bool = False) -> None:
        self.tally.outcomes[outcome] += 1
        if wrong:
            self.tally.broken.append(str(wrong))


@contextlib.asynccontextmanager
async def chaos(seed: int) -> AsyncIterator[Chaos]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        await server.start()
        try:
            made = Chaos(server, seed)
            await made.learn()
            yield made
        finally:
            if server.process is not None and server.process.returncode is None:
                server.process.kill()
                await server.process.wait()


async def soak(seconds: float, seed: int) -> int:
    length = min(20.0, max(4.0, seconds / 9))
    async with chaos(seed) as made:
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(made.memory) < 3:
            await made.round(length)
            print(f"rss {made.memory[-1] / 2**20:.1f} MiB, files {made.files[-1]:.0f}, {dict(made.tally.outcomes)}")  # noqa: T201
        await made.drain()
    if made.growth() > RSS_GROWTH and len(made.memory) > 8:
        made.tally.broken.append(f"memory grew by the factor {made.growth():.3f}, the limit is {RSS_GROWTH}")
    print(f"seed {seed}, memory x {made.growth():.3f}, {dict(made.tally.outcomes)}")  # noqa: T201
    for law in made.tally.broken:
        print(f"BROKEN: {law}")  # noqa: T201
    return 1 if made.tally.broken else 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own server
        return str(answer.read().decode())


def main() -> int:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    return asyncio.run(soak(arguments.seconds, arguments.seed))


if __name__ == "__main__":
    sys.exit(main())
