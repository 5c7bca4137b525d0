"""`firsttoken serve` of a two-rank engine: the real command, supervisor, mpirun and MPI; TensorRT-LLM and nvidia-smi are fakes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from engines.simulated.tokenizer import text_alphabet
from tests.e2e.process import ROOT, ServerProcess, serve_command
from tests.trtllm.engines import FACTS, make_adapter, make_engine

FAKE_SITE = ROOT / "tests" / "trtllm" / "fake_site"
RANKS = 2
_SMI = """#!/bin/sh
for gpu in 1 2; do echo 'NVIDIA H100 80GB HBM3, 9.0, 81559, 580.95.05'; done
"""


def require_mpi() -> None:
    """Skips, saying what is missing: MPI comes from PyPI, yet not on every platform."""
    pytest.importorskip("mpi4py", reason="needs MPI: pip install 'firsttoken[dev]'")
    if shutil.which("mpirun", path=_path()) is None:
        pytest.skip("needs mpirun: pip install 'firsttoken[dev]'")


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def environment(folder: Path, *, library: bool = True) -> dict[str, str]:
    """With the fakes, or, without ``library``, as on a machine that has GPUs but no TensorRT-LLM."""
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    smi = bin_ / "nvidia-smi"
    smi.write_text(_SMI)
    smi.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FIRSTTOKEN_", "OMPI_", "PMIX_"))}
    paths = [str(FAKE_SITE)] * library + [str(ROOT)]
    return kept | {"PATH": os.pathsep.join([str(bin_), _path()]), "PYTHONPATH": os.pathsep.join(paths)}


class Job(ServerProcess):
    """A running job and its processes."""

    folder: Path
    seconds_to_ready: float
    """From exec until /readyz answered 200."""
    seen: set[psutil.Process]
    """Every process of the job that was met so far."""

    def phases(self) -> dict[str, float]:
        """Seconds by phase, as the supervisor and the leader told them, in the order in which they ended."""
        return {str(line["phase"]): float(str(line["seconds"])) for line in self.log() if line["event"] == "started"}

    def processes(self) -> list[psutil.Process]:
        """
        Every one of ours that is alive, however it was started: each has the engine's directory on its command line.

        Once met, a process counts until it is gone or a zombie: one that is being torn down runs on for a while
        without a command line.
        """
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(self.folder) in " ".join(process.cmdline()):
                    self.seen.add(process)
        return [process for process in self.seen if is_alive(process)]

    def mpirun(self) -> psutil.Process:
        (found,) = [p for p in self.processes() if p.pid != self.process.pid and p.ppid() == self.process.pid]
        return found

    def rank(self, number: int) -> psutil.Process:
        (found,) = [p for p in self.processes() if p.environ().get("OMPI_COMM_WORLD_RANK") == str(number)]
        return found

    def wait_until_gone(self, seconds: float) -> None:
        wait_for(lambda: not self.processes(), seconds, lambda: f"left: {self.processes()}")


def is_alive(process: psutil.Process) -> bool:
    """False for a zombie too, and for another process that was given the same number since."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], bool], seconds: float, why: Callable[[], str] = lambda: "too late") -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, why()
        time.sleep(0.05)


@contextlib.contextmanager
def job(
    *arguments: str,
    step: float = 0.02,
    hanging_rank: int | None = None,
    fails_with: str | None = None,
    adapters: tuple[str, ...] = (),
    ready: bool = True,
) -> Iterator[Job]:
    """A served engine of two ranks, ready unless told otherwise; whatever is left is killed at the end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        facts = msgspec.structs.replace(
            FACTS, tp=RANKS, max_batch_size=32, max_seq_len=4096, max_input_len=4096, max_lora_rank=8
        )
        for adapter in adapters:
            make_adapter(folder / "adapters" / adapter)
            arguments = ("--engine.adapters", str(folder / "adapters"), *arguments)
        habits = {"fixed": step, "end_rate": 0.0, "alphabet": text_alphabet()}
        make_engine(folder / "engine", facts, habits=habits)
        told = environment(folder)
        if hanging_rank is not None:
            told["FAKE_TENSORRT_LLM_HANGS_AT_LOADING"] = str(hanging_rank)
        if fails_with is not None:
            told["FAKE_TENSORRT_LLM_FAILS_WITH"] = fails_with
        flags = ["--grpc.port", "0", "--http.port", "0", "--telemetry.log_format", "json", *arguments]
        command = serve_command(str(folder / "engine"), *flags)
        log_path = folder / "log"
        began = time.perf_counter()
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=told, stdout=log, stderr=log)
        running = Job(process, log_path)
        running.folder = folder
        running.seen = {psutil.Process(process.pid)}
        try:
            if ready:
                running.wait_until_ready()
                running.seconds_to_ready = time.perf_counter() - began
                running.processes()  # to have met them all before any of them ends
            yield running
        finally:
            for left in running.processes():
                with contextlib.suppress(psutil.Error):
                    left.send_signal(signal.SIGKILL)
            process.wait(60)
