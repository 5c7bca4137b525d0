"""NVIDIA's load generator against this wire, where its program is there and this machine's C library runs it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.whole_server import ENGINES, serving


def perf_analyzer() -> str:
    """Skips, saying why, where it cannot run: its wheel needs glibc 2.38 and installs empty elsewhere."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("perf_analyzer", path=beside) or shutil.which("perf_analyzer")
    if found is None:
        pytest.skip("perf_analyzer is not installed (pip install perf-analyzer; needs glibc 2.38 or newer)")
    tried = subprocess.run([found, "--version"], capture_output=True, text=True, check=False, timeout=30)
    if tried.returncode:
        pytest.skip(f"perf_analyzer does not run here: {(tried.stderr or tried.stdout).strip()[:200]}")
    return found


@pytest.mark.parametrize("engine", ENGINES)
async def test_it_measures_streams(engine: str, tmp_path: Path) -> None:
    program = perf_analyzer()
    data = {"data": [{"text_input": ["Tell me"], "max_tokens": [16], "stream": [True]}]}
    given, report = tmp_path / "in.json", tmp_path / "out.json"
    given.write_text(json.dumps(data))
    async with serving(engine, "laptop", lifecycle__warm_up=False) as (app, _):
        command = [
            program,
            "-m",
            "ensemble",
            "-u",
            f"127.0.0.1:{app.grpc_port}",
            "-i",
            "grpc",
            "--streaming",
            "--async",
        ]
        command += ["--service-kind", "triton", "--input-data", str(given), "--concurrency-range", "4"]
        command += ["--measurement-mode", "count_windows", "--measurement-request-count", "8"]
        command += ["--profile-export-file", str(report)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
    requests = json.loads(report.read_text())["experiments"][0]["requests"]
    assert len(requests) >= 8
    assert all(len(each["response_timestamps"]) >= 2 for each in requests)
