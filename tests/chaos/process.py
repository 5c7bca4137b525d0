"""The server process of a storm: its files, its life, and what it says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import trustme

from firsttoken.client import AsyncClient, RetryPolicy, Tls
from server.access.directory import hash_token
from tests.fakes.ports import unused_port

TOKEN, STALL, STUCK = "chaos-token", 3.0, 5.0
"""The one valid token; seconds after which a reader counts as stalled, and a step as stuck."""
CERTIFICATE_PERIOD, SAVE_INTERVAL = 0.5, 0.5
READY = 180.0
"""Seconds that a start may take on a machine that does much else."""


class Server:
    """`firsttoken serve` with TLS and tokens, and the files that it watches. It can be started again and again, on the same ports."""

    def __init__(self, folder: Path, engine: str, *knobs: str) -> None:
        self.folder = folder
        self.engine = engine
        self.lives = 0
        """Processes so far."""
        self.ready_after = 0.0
        """Seconds from the last start until it was ready."""
        self._knobs = knobs
        self._ca = trustme.CA()
        self.rotate()
        self.authority = folder / "ca.pem"
        self.saved_cache = folder / "cache"
        self.authority.write_bytes(self._ca.cert_pem.bytes())
        (folder / "access.toml").write_text(
            f'[tenants.chaos]\ntokens = [{{ sha256 = "{hash_token(TOKEN)}" }}]\noperator = true\n'
        )
        self.grpc_port, self.http_port = unused_port(), unused_port()
        self.process: asyncio.subprocess.Process | None = None

    def rotate(self) -> None:
        """A new certificate of the same authority, each file replaced whole."""
        issued = self._ca.issue_cert("localhost")
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        for name, content in (("server.pem", chain), ("server.key", issued.private_key_pem.bytes())):
            fresh = self.folder / f"{name}.new"
            fresh.write_bytes(content)
            fresh.replace(self.folder / name)

    # ------------------------------------------------------------------ its life

    async def start(self) -> None:
        began = time.monotonic()
        self.lives += 1
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTTOKEN_")}
        # glibc gives each thread that finds the heap taken one of its own, eight a core: that spreads for hours, and looks like a leak.
        environment["MALLOC_ARENA_MAX"] = "2"
        with self.log_path.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.program", *self._arguments(), env=environment, stdout=log, stderr=log
            )
        async with self.client() as client:
            await client.wait_ready(READY)
        self.ready_after = time.monotonic() - began

    def _arguments(self) -> list[str]:
        knobs: dict[str, object] = {
            "grpc.port": self.grpc_port,
            "http.port": self.http_port,
            "tls.certificate": self.folder / "server.pem",
            "tls.key": self.folder / "server.key",
            "access.file": self.folder / "access.toml",
            "access.reload_period": CERTIFICATE_PERIOD,
            "cache.save_path": self.saved_cache,
            "cache.save_interval": SAVE_INTERVAL,
            "limits.reader_stall": STALL,
            "telemetry.log_requests": "false",
            "telemetry.log_level": "error",
            "telemetry.log_format": "json",
            "telemetry.crash_directory": self.folder / "crashes",
            "telemetry.recording": self.folder / "traffic.jsonl",
        }
        if self.engine.startswith(
            "simulated"
        ):  # an embedded engine's honest steps may take as long on a machine that does much else
            knobs["engine.stuck_after"] = STUCK
        flags = [part for name, value in knobs.items() for part in (f"--{name}", str(value))]
        return [str(self._socket), self.engine, *flags, *self._knobs]

    @property
    def running(self) -> asyncio.subprocess.Process:
        """The process. Raises RuntimeError where none was started."""
        if self.process is None:
            raise RuntimeError("the server was not started")
        return self.process

    async def kill(self) -> None:
        """Whatever state it is in."""
        if self.process is not None:
            end(self.process)
            await self.process.wait()

    # ------------------------------------------------------------------ how to reach it

    @property
    def address(self) -> str:
        return f"localhost:{self.grpc_port}"

    def client(self, token: str = TOKEN) -> AsyncClient:
        """One that tells every refusal, instead of trying again."""
        retry = RetryPolicy(attempts=1)
        return AsyncClient(self.address, tls=Tls.from_files(self.authority), token=token, retry=retry)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection for HTTP/2 by hand."""
        context = ssl.create_default_context(cafile=self.authority)
        context.set_alpn_protocols(["h2"])
        return await asyncio.open_connection("127.0.0.1", self.grpc_port, ssl=context, server_hostname="localhost")

    async def control(self, do: str) -> dict[str, Any]:
        """Ask tests.chaos.program's socket."""
        reader, writer = await asyncio.open_unix_connection(self._socket)
        writer.write(json.dumps({"do": do}).encode() + b"\n")
        answer = await reader.readline()
        writer.close()
        return dict(json.loads(answer))

    async def metrics(self) -> dict[str, float]:
        text = await asyncio.to_thread(self._get, "/metrics")
        lines = re.findall(r"^(?:firsttoken_)?(\S+) (\S+)$", text, re.MULTILINE)
        return {name: float(value) for name, value in lines}

    async def ready(self) -> bool:
        """As a load balancer asks; False, too, where nobody answers."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._get, "/readyz")
            return True
        return False

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    # ------------------------------------------------------------------ what it left behind

    @property
    def log_path(self) -> Path:
        return self.folder / f"log-{self.lives}"

    def log(self) -> str:
        """All that the present process has written to its standard streams."""
        return self.log_path.read_text(errors="replace")

    @property
    def _socket(self) -> Path:
        return self.folder / f"control-{self.lives}"


def end(process: asyncio.subprocess.Process) -> None:
    """SIGKILL. (Process.kill() first looks whether it has ended, and then asyncio, which waits for it, never learns how.)"""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
