"""A real server in a process of its own, for whatever measures it from outside."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec


class Served(msgspec.Struct, frozen=True):
    address: str
    """Of the gRPC port."""
    http: str
    """Base address of the HTTP port."""
    process: int
    seconds_to_ready: float
    """From exec until /readyz answered 200."""
    log: str
    """Path of the server's log."""


@contextlib.contextmanager
def serving(engine: Path | str, *flags: str, timeout: float = 120.0) -> Iterator[Served]:
    """Serve ``engine`` on free loopback ports; ends the server with SIGTERM. Raises RuntimeError with its log if it fails."""
    grpc_port, http_port = _free_port(), _free_port()
    command = [sys.executable, "-m", "firsttoken", "serve", str(engine)]
    command += ["--grpc.port", str(grpc_port), "--http.port", str(http_port), *flags]
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            ready = _wait_ready(process, f"http://127.0.0.1:{http_port}/readyz", started, timeout)
            yield Served(f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{http_port}", process.pid, ready, log.name)
        except TimeoutError as error:
            raise RuntimeError(f"the server did not become ready: {error}\n{Path(log.name).read_text()}") from error
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_ready(process: subprocess.Popen[bytes], url: str, started: float, timeout: float) -> float:
    while time.perf_counter() - started < timeout:
        if process.poll() is not None:
            raise TimeoutError(f"it ended with code {process.returncode}")
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=1):  # noqa: S310 - our own loopback address
            return time.perf_counter() - started
        time.sleep(0.01)
    raise TimeoutError(f"not within {timeout} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
