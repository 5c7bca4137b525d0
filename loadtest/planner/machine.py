"""This machine instead of a device of the table: step times as the engine's build measured them, memory as the machine has it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import psutil

from build_scripts.bill import kv_bytes_per_token
from engines.manifest import MANIFEST_NAME, EngineManifest
from engines.openvino.memory_need import RUNTIME_BYTES, loaded_bytes
from loadtest.errors import WorkloadError
from loadtest.planner.memory import MemoryBill

KV_SHARE = 0.4
"""Of the free memory that the server takes for keys and values unless it is told otherwise (engine.kv_share)."""


def read_manifest(directory: Path) -> EngineManifest:
    """Raises WorkloadError where the directory is no engine."""
    path = directory / MANIFEST_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineManifest)
    except OSError as error:
        raise WorkloadError(
            f"--device this: needs an engine, whose build measured this machine; cannot read {path}: {error.strerror}"
        ) from error
    except msgspec.MsgspecError as error:
        raise WorkloadError(f"{path}: {error}") from error


def machine_bill(manifest: EngineManifest, free: int | None = None) -> MemoryBill:
    """What is free (``free`` bytes, or what the system says) and what the server would take of it."""
    available = psutil.virtual_memory().available if free is None else free
    weights = loaded_bytes(manifest) - RUNTIME_BYTES
    return MemoryBill(
        total=available,
        usable=int(available * KV_SHARE) + weights + RUNTIME_BYTES,
        weights=weights,
        workspace=RUNTIME_BYTES,
        kv=int(available * KV_SHARE),
        kv_per_token=kv_bytes_per_token(manifest.model, manifest.numerics.kv_cache),
    )
