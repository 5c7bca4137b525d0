"""From an engine directory to a runner that is ready for its first step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import openvino as ov

from engines import manifest_file
from engines.contract import EngineLoadError, EngineMemoryError
from engines.manifest import EngineManifest
from engines.openvino.fitness import misfits
from engines.openvino.graph import page
from engines.openvino.host import available_memory, usable_cores
from engines.openvino.kv_memory import KvMemory, bytes_per_block
from engines.openvino.memory_need import require_memory
from engines.openvino.runner import LoadTimings, OpenVinoStepRunner
from engines.openvino.settings import compile_properties
from engines.sampling.constraint import Constraints

MODEL_NAME = "model.xml"
DEFAULT_KV_BYTES = 1 << 30
_DEFAULT_SHARE = 4
"""One part in so many of the available memory is the most that is taken by default."""


def load_runner(
    directory: Path,
    *,
    kv_bytes: int | None,
    kv_blocks: int | None,
    threads: int | None,
    max_rows: int,
    max_step_tokens: int,
    manifest: EngineManifest | None,
    properties: Mapping[str, str] | None,
    constraints: Constraints | None,
) -> OpenVinoStepRunner:
    """See :func:`engines.openvino.load`."""
    _require_positive(kv_bytes=kv_bytes, kv_blocks=kv_blocks, max_rows=max_rows, max_step_tokens=max_step_tokens)
    asked = time.perf_counter()
    manifest = manifest or read_manifest(directory)
    check_engine(directory, manifest)
    if kv_blocks is None:
        require_memory(manifest, kv_bytes=_kv_budget(kv_bytes), available=available_memory())
    compiled_with = compile_properties(manifest.numerics, usable_cores() if threads is None else threads, properties)
    core = ov.Core()
    started = time.perf_counter()
    model = _read(core, directory / MODEL_NAME)
    read = time.perf_counter()
    page(model)
    transformed = time.perf_counter()
    compiled = _compile(core, model, compiled_with)
    compiled_at = time.perf_counter()
    _check_shapes(compiled, manifest)
    memory = KvMemory(compiled, _block_count(bytes_per_block(compiled), kv_bytes, kv_blocks))
    allocated = time.perf_counter()
    timings = LoadTimings(
        started - asked, read - started, transformed - read, compiled_at - transformed, allocated - compiled_at
    )
    return OpenVinoStepRunner(
        manifest,
        compiled,
        memory,
        timings,
        max_rows=max_rows,
        max_step_tokens=max_step_tokens,
        constraints=constraints,
    )


def read_manifest(directory: Path) -> EngineManifest:
    """Raises EngineLoadError where there is none, none that this version reads, or one of another engine."""
    return manifest_file.read_manifest(directory, "openvino")


def _require_positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise EngineLoadError(f"{name}: must be at least 1, got {value}")


def check_engine(directory: Path, manifest: EngineManifest) -> None:
    """What can be said without reading a weight. Raises EngineLoadError naming all that is wrong."""
    if problems := list(misfits(directory, manifest)):
        raise EngineLoadError(f"{directory}: {'; '.join(problems)}")


def _read(core: ov.Core, path: Path) -> ov.Model:
    try:
        return core.read_model(str(path))
    except (RuntimeError, MemoryError) as error:
        raise EngineLoadError(f"{path.name}: cannot be read: {error}") from error


def _compile(core: ov.Core, model: ov.Model, properties: dict[str, str]) -> ov.CompiledModel:
    try:
        return core.compile_model(model, "CPU", properties)
    except (RuntimeError, MemoryError) as error:
        raise EngineLoadError(f"{MODEL_NAME}: cannot be compiled with {properties}: {error}") from error


def _check_shapes(compiled: ov.CompiledModel, manifest: EngineManifest) -> None:
    """The graph must be the one that the manifest describes: ids are checked against the manifest's numbers."""
    vocabulary = int(list(compiled.outputs[0].get_partial_shape())[-1].get_length())
    if vocabulary != manifest.model.vocab_size:
        raise EngineLoadError(f"{MODEL_NAME}: manifest says vocab_size {manifest.model.vocab_size}, got {vocabulary}")
    layers = sum(port.get_any_name().startswith("key_cache.") for port in compiled.inputs)
    if layers != manifest.model.layers:
        raise EngineLoadError(f"{MODEL_NAME}: manifest says {manifest.model.layers} layers, got {layers}")


def _block_count(block_bytes: int, kv_bytes: int | None, kv_blocks: int | None) -> int:
    """The pool's size. Raises EngineLoadError where the memory for it is not there: it is committed block by block, as blocks are
    first written, and running out then would end the process."""
    available, budget = available_memory(), _kv_budget(kv_bytes)
    count = kv_blocks or budget // block_bytes
    if count < 1:
        raise EngineLoadError(f"kv_bytes: must hold one block of {block_bytes} bytes at least, got {budget}")
    if count * block_bytes > available:
        raise EngineMemoryError(
            f"kv memory: {count} blocks of {block_bytes} bytes need {count * block_bytes} bytes, {available} are available"
        )
    return count


def _kv_budget(kv_bytes: int | None) -> int:
    return kv_bytes or min(DEFAULT_KV_BYTES, available_memory() // _DEFAULT_SHARE)
