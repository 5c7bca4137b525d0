"""Can this machine serve this engine, and if not, why not?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from build_scripts.bill import kv_bytes_per_token
from build_scripts.profile import machine
from build_scripts.source import file_sha256
from engines import manifest_file
from engines.contract import EngineLoadError
from engines.manifest import EngineManifest
from engines.manifest_file import REBUILD
from engines.openvino.fitness import misfits
from engines.openvino.host import available_memory, usable_cores
from engines.openvino.loader import read_manifest
from engines.openvino.memory_need import loaded_bytes


class Inspection(msgspec.Struct, frozen=True):
    directory: str
    manifest: EngineManifest
    problems: tuple[str, ...]
    """Why this machine cannot serve the engine; empty = it can."""
    notes: tuple[str, ...]
    """What is worth knowing and prevents nothing."""

    @property
    def servable(self) -> bool:
        return not self.problems


def inspect_engine(directory: Path) -> Inspection:
    """Reads every byte of the engine. Raises EngineLoadError where there is no manifest that this version reads."""
    if manifest_file.read_manifest(directory).engine == "trtllm":
        return _compiled(directory)
    manifest = read_manifest(directory)
    problems = [*misfits(directory, manifest), *_changed(directory, manifest), *_memory(manifest)]
    return Inspection(str(directory), manifest, tuple(problems), tuple(_notes(manifest)))


def _compiled(directory: Path) -> Inspection:
    """case_A2: a TensorRT-LLM engine against this machine, value by value; no GPU is touched."""
    from engines.trtllm.machine import observe_machine
    from engines.trtllm.preflight import checks, mismatches
    from engines.trtllm.settings import ExecutorSettings

    manifest, machine = manifest_file.read_manifest(directory, "trtllm"), observe_machine()
    table = checks(directory, manifest, machine, ExecutorSettings())
    problems = mismatches(directory, manifest, machine, ExecutorSettings())
    return Inspection(
        str(directory),
        manifest,
        tuple(problems),
        tuple(f"{check.name}: engine {check.engine}, here {check.here}" for check in table),
    )


def is_intact(directory: Path, fingerprint: str) -> bool:
    """Whether the engine of this fingerprint stands here, every file as its manifest says."""
    try:
        manifest = read_manifest(directory)
    except (EngineLoadError, OSError):
        return False
    return manifest.fingerprint == fingerprint and not [*misfits(directory, manifest), *_changed(directory, manifest)]


def _changed(directory: Path, manifest: EngineManifest) -> Iterator[str]:
    """Files of the right size whose bytes are not those that were built."""
    for entry in manifest.files:
        path = directory / entry.name
        if path.is_file() and path.stat().st_size == entry.bytes and file_sha256(path) != entry.sha256:
            yield f"{entry.name} is not what was built, its sha256 differs: {REBUILD}"


def _memory(manifest: EngineManifest) -> Iterator[str]:
    loaded = loaded_bytes(manifest)
    context = kv_bytes_per_token(manifest.model, manifest.numerics.kv_cache) * manifest.model.max_context
    available = available_memory()
    if loaded + context > available:
        yield (
            f"needs {loaded / 1e6:.0f} MB loaded and {context / 1e6:.0f} MB for one sequence of {manifest.model.max_context} "
            f"tokens, {available / 1e6:.0f} MB are available"
        )


def _notes(manifest: EngineManifest) -> Iterator[str]:
    here = machine(usable_cores())
    if manifest.profile.machine != here:
        yield f"step times were measured on {manifest.profile.machine}, this is {here}: they are a first guess here"
    if not manifest.numerics.golden_reference.startswith("transformers"):
        yield (
            f"no golden data is committed for this checkpoint: it was held against {manifest.numerics.golden_reference} on "
            f"{manifest.numerics.golden_positions} positions"
        )
