"""Starts the fake servers of this folder, each in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


@contextlib.contextmanager
def fake(script: str, *options: str) -> Iterator[str]:
    """Run one of the fakes; gives its address."""
    command = [sys.executable, str(HERE / script), *options]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        try:
            port = process.stdout.readline().strip()
            if not port:
                raise RuntimeError(f"{script} did not start")
            yield f"127.0.0.1:{port}"
        finally:
            process.stdin.close()
            process.wait(60)


@contextlib.contextmanager
def paced(*options: str) -> Iterator[str]:
    with fake("fake_server.py", *options) as address:
        yield address
