"""The memory that an engine will need, said before a byte of its weights is read: running out later would end the process."""

from __future__ import annotations

from engines.contract import EngineMemoryError
from engines.manifest import EngineManifest

RUNTIME_BYTES = 220_000_000
"""Resident size of the library with a model loaded, weights, key-value memory and activations aside (measured, openvino 2026.4.1)."""

ONE_TOKEN_BYTES = 60_000_000
"""Of the graph and the kernels that run the steps of one token in an engine of two forms (engines/openvino/session.py), weights aside."""


def loaded_bytes(manifest: EngineManifest) -> int:
    """Resident size of a loaded engine before any key-value memory: its weights as the library holds them beside the mapped file."""
    mapped = {entry.name: entry.bytes for entry in manifest.files if entry.name.endswith(".bin")}
    # The files, and their weights packed for the kernels.
    loaded = 2 * sum(mapped.values()) + RUNTIME_BYTES
    if manifest.numerics.wide_weights:
        loaded += mapped.get("model.bin", 0) + ONE_TOKEN_BYTES  # packed once more
    return loaded


def require_memory(manifest: EngineManifest, *, kv_bytes: int, available: int) -> None:
    """Raises EngineMemoryError with the bill where the engine and its keys and values do not fit into what is ``available``."""
    engine = loaded_bytes(manifest)
    if engine + kv_bytes > available:
        raise EngineMemoryError(
            f"memory: {manifest.source.name} needs {engine / 1e6:.0f} MB loaded and {kv_bytes / 1e6:.0f} MB for keys and values "
            f"(engine.kv_bytes), {(engine + kv_bytes) / 1e6:.0f} MB together; {available / 1e6:.0f} MB are available"
        )
