"""What this machine has, found without importing the library and without touching CUDA."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from engines.contract import EngineLoadError

_QUERY = "name,compute_cap,memory.total,driver_version"
_PATIENCE = 20.0
"""Seconds: a driver that initialises its GPUs first can take several."""
_NOTHING_VISIBLE = ("", "-1", "NoDevFiles")
"""What containers and schedulers set CUDA_VISIBLE_DEVICES to where a process gets no GPU."""
MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    name: str
    compute_capability: str
    memory: int
    """Bytes."""


@dataclass(frozen=True)
class Machine:
    """None where it is not installed."""

    tensorrt_llm: str | None
    tensorrt: str | None
    cuda: str | None
    driver: str | None
    gpus: tuple[Gpu, ...]
    mpirun: str | None
    """Where it is."""


def observe_machine() -> Machine:
    """Reads package metadata and asks nvidia-smi. Raises EngineLoadError where that does not answer."""
    driver, gpus = _gpus()
    return Machine(
        tensorrt_llm=_version("tensorrt_llm"),
        tensorrt=_version("tensorrt"),
        cuda=_version("cuda-python"),
        driver=driver,
        gpus=gpus,
        mpirun=shutil.which("mpirun"),
    )


def _gpus() -> tuple[str | None, tuple[Gpu, ...]]:
    """The driver's version, and the GPUs that a process started here may use, in its order. None, and none, where there is no driver.

    nvidia-smi lists all of a machine's, whatever CUDA_VISIBLE_DEVICES says; it takes the same list of numbers or UUIDs.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return None, ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return parse_gpus(_ask(command))
    if visible.strip() in _NOTHING_VISIBLE:
        return parse_gpus(_ask(command))[0], ()
    return parse_gpus(_ask(command, "-i", visible))


def _ask(command: str, *which: str) -> str:
    try:
        answer = subprocess.run(
            [command, *which, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineLoadError(
            f"nvidia-smi has not answered for {_PATIENCE:g} s: the driver hangs; look at dmesg"
        ) from error
    except (subprocess.CalledProcessError, OSError) as error:
        said = getattr(error, "stdout", "") or getattr(error, "stderr", "") or str(error)
        raise EngineLoadError(f"nvidia-smi fails: {said.strip().splitlines()[0]}") from error
    return answer.stdout


def parse_gpus(table: str) -> tuple[str | None, tuple[Gpu, ...]]:
    """One line a GPU: "NVIDIA L40S, 8.9, 46068, 580.95.05" (memory in MiB). Raises EngineLoadError for anything else."""
    gpus, driver = [], None
    for line in filter(None, map(str.strip, table.splitlines())):
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 4 or not fields[2].isdigit():
            raise EngineLoadError(f"nvidia-smi says {line!r}, expected {_QUERY}")
        gpus.append(Gpu(fields[0], fields[1], int(fields[2]) * MIB))
        driver = fields[3]
    return driver, tuple(gpus)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
