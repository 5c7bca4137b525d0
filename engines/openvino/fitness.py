"""Does an engine fit this machine and this library? Asked before a byte of its weights is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openvino as ov

from engines.manifest import EngineManifest
from engines.manifest_file import REBUILD


def openvino_version() -> str:
    """The release, without the build number: "2026.4.1"."""
    return str(ov.get_version()).split("-", 1)[0]


def processor() -> str:
    """Its name and the instructions that the library uses: another one computes slightly other numbers."""
    core = ov.Core()
    capabilities = " ".join(sorted(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")))
    return f"{core.get_property('CPU', 'FULL_DEVICE_NAME')} ({capabilities})"


def misfits(directory: Path, manifest: EngineManifest) -> Iterator[str]:
    """Why the engine cannot be served here, as far as a look without reading tells."""
    yield from _files(directory, manifest)
    yield from _version(manifest)
    yield from _processor(manifest)


def _files(directory: Path, manifest: EngineManifest) -> Iterator[str]:
    for entry in manifest.files:
        path = directory / entry.name
        if not path.is_file():
            yield f"{entry.name} is missing: {REBUILD}"
        elif (size := path.stat().st_size) != entry.bytes:
            yield f"{entry.name} has {size} bytes, the manifest says {entry.bytes}: {REBUILD}"


def _version(manifest: EngineManifest) -> Iterator[str]:
    built, here = manifest.tools.get("openvino"), openvino_version()
    if built is not None and built != here:
        yield f"built with openvino {built} and verified with it, this machine has openvino {here}: {REBUILD}"


def _processor(manifest: EngineManifest) -> Iterator[str]:
    capabilities = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if manifest.numerics.activations == "bf16" and "BF16" not in capabilities:
        yield "activations are bf16 and this CPU has no bf16 instructions: build with --activations f32"
