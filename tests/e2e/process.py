"""`firsttoken serve` as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[2]
SERVE = "import sys; from firsttoken.commands.serve import run_raw; sys.exit(run_raw(sys.argv[1:]))"


@dataclass
class ServerProcess:
    process: subprocess.Popen[bytes]
    log_path: Path
    grpc_port: int = 0
    http_port: int = 0

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def log(self) -> list[dict[str, object]]:
        """Every finished line so far."""
        text = self.log_path.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines() if line.startswith("{")]

    def http(self, path: str) -> str:
        with urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=30) as response:
            return str(response.read().decode())

    def metric(self, name: str) -> float:
        """The value of one sample, named as in the text format."""
        lines = (line for line in self.http("/metrics").splitlines() if line.startswith(f"{name} "))
        return float(next(lines).split()[-1])

    def wait_until_ready(self, seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}: {self.log_path.read_text()}")
            ports = {line["protocol"]: str(line["address"]) for line in self.log() if line["event"] == "listening"}
            if len(ports) == 2:
                self.grpc_port, self.http_port = (int(ports[name].rpartition(":")[2]) for name in ("grpc", "http"))
                with contextlib.suppress(OSError):
                    self.http("/readyz")
                    return
            time.sleep(0.05)
        raise AssertionError(f"not ready after {seconds} s: {self.log_path.read_text()}")


def serve_command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", SERVE, *arguments]


@contextlib.contextmanager
def served(*arguments: str, engine: str = "simulated:laptop") -> Iterator[ServerProcess]:
    """A ready server process; killed at the end if it still runs."""
    with tempfile.TemporaryDirectory() as folder:
        log_path = Path(folder) / "log"
        usual = {"--grpc.port": "0", "--http.port": "0", "--telemetry.log_format": "json"}
        flags = [
            *arguments,
            *(part for flag, value in usual.items() if flag not in arguments for part in (flag, value)),
        ]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FIRSTTOKEN_")}
        with log_path.open("wb") as log:
            process = subprocess.Popen(serve_command(engine, *flags), cwd=ROOT, env=environment, stderr=log, stdout=log)
        server = ServerProcess(process, log_path)
        try:
            server.wait_until_ready()
            yield server
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(60)
