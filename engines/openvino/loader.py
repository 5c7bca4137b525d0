"""From an engine directory to a runner that is ready for its first step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import openvino as ov

from engines import manifest_file
from engines.contract import EngineLoadError, EngineMemoryError
from engines.manifest import EngineManifest
from engines.openvino.fitness import misfits
from engines.openvino.graph import fix_to_one_token, page
from engines.openvino.host import available_memory, usable_cores
from engines.openvino.kv_memory import KvMemory, bytes_per_block, cache_ports
from engines.openvino.memory_need import require_memory
from engines.openvino.runner import LoadTimings, OpenVinoStepRunner
from engines.openvino.session import WIDE_FROM, rehearsal
from engines.openvino.settings import compile_properties
from engines.sampling.constraint import Constraints

MODEL_NAME = "model.xml"
WIDE_NAME = "wide.xml"
"""The same graph over dequantised matrices, of an engine whose numerics say wide_weights."""
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
    plans = _TWO_FORMS if manifest.numerics.wide_weights else _ONE_FORM
    loaded = _load_forms(core, directory, plans, compiled_with)
    compiled_at = time.perf_counter()
    forms = [form.compiled for form in loaded]
    for form, plan in zip(forms, plans, strict=True):
        _check_shapes(form, manifest, plan.name)
    _check_same_cache(forms)
    memory = KvMemory(forms[0], _block_count(bytes_per_block(forms[0]), kv_bytes, kv_blocks))
    allocated = time.perf_counter()
    slowest = max(loaded, key=lambda form: form.seconds)
    timings = LoadTimings(
        started - asked,
        slowest.read_seconds,
        slowest.transform_seconds,
        compiled_at - started - slowest.read_seconds - slowest.transform_seconds,
        allocated - compiled_at,
    )
    return OpenVinoStepRunner(
        manifest,
        forms,
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


@dataclass(frozen=True)
class _FormPlan:
    """What is compiled of which file."""

    name: str
    rehearsed: int
    """Tokens of the step that it is tried with."""
    one_token: bool = False
    """For steps of one token alone."""


_ONE_FORM = (_FormPlan(MODEL_NAME, 1),)
_TWO_FORMS = (
    _FormPlan(MODEL_NAME, 1, one_token=True),
    _FormPlan(MODEL_NAME, WIDE_FROM - 1),
    _FormPlan(WIDE_NAME, WIDE_FROM),
)
"""In the order that ModelSession takes."""


@dataclass(frozen=True)
class _Graph:
    """A file's graph, paged, and the seconds that it took."""

    name: str
    model: ov.Model
    read_seconds: float
    transform_seconds: float


@dataclass(frozen=True)
class _Loaded:
    """One compiled model, and the seconds that its parts took."""

    compiled: ov.CompiledModel
    read_seconds: float
    transform_seconds: float
    compile_seconds: float

    @property
    def seconds(self) -> float:
        return self.read_seconds + self.transform_seconds + self.compile_seconds


def _load_forms(
    core: ov.Core, directory: Path, plans: Sequence[_FormPlan], properties: dict[str, str]
) -> list[_Loaded]:
    """Side by side, as the library compiles on one thread a model; what takes longest begins first. What is compiled twice is read once."""
    graphs: dict[str, _Graph] = {}
    compiling: list[Future[_Loaded]] = []
    with ThreadPoolExecutor(len(plans), "load") as pool:
        for plan in plans:
            if plan.name not in graphs:
                graphs[plan.name] = _read_graph(core, directory / plan.name)
            graph = _shape(graphs[plan.name], plan)
            compiling.append(pool.submit(_compile_form, core, graph, properties))
        loaded = [form.result() for form in compiling]
    for form, plan in zip(loaded, plans, strict=True):
        _rehearse(form.compiled, plan.name, plan.rehearsed)
    return loaded


def _read_graph(core: ov.Core, path: Path) -> _Graph:
    started = time.perf_counter()
    model = _read(core, path)
    read = time.perf_counter()
    page(model, path.name)
    return _Graph(path.name, model, read - started, time.perf_counter() - read)


def _shape(graph: _Graph, plan: _FormPlan) -> _Graph:
    if not plan.one_token:
        return graph
    started = time.perf_counter()
    model = graph.model.clone()
    fix_to_one_token(model, graph.name)
    return _Graph(graph.name, model, graph.read_seconds, graph.transform_seconds + time.perf_counter() - started)


def _compile_form(core: ov.Core, graph: _Graph, properties: dict[str, str]) -> _Loaded:
    started = time.perf_counter()
    compiled = _compile(core, graph.model, properties, graph.name)
    return _Loaded(compiled, graph.read_seconds, graph.transform_seconds, time.perf_counter() - started)


def _rehearse(compiled: ov.CompiledModel, name: str, tokens: int) -> None:
    """A step of so many tokens over a memory of one block: the library packs the weights in the first one, which is a part of compiling,
    and what cannot run is known before anybody asks."""
    memory = KvMemory(compiled, 1)
    try:
        rehearsal(compiled, memory, tokens)
    except (RuntimeError, MemoryError) as error:
        raise EngineLoadError(f"{name}: its first step failed: {error}") from error


def _read(core: ov.Core, path: Path) -> ov.Model:
    try:
        return core.read_model(str(path))
    except (RuntimeError, MemoryError) as error:
        raise EngineLoadError(f"{path.name}: cannot be read: {error}") from error


def _compile(core: ov.Core, model: ov.Model, properties: dict[str, str], name: str) -> ov.CompiledModel:
    try:
        return core.compile_model(model, "CPU", properties)
    except (RuntimeError, MemoryError) as error:
        raise EngineLoadError(f"{name}: cannot be compiled with {properties}: {error}") from error


def _check_shapes(compiled: ov.CompiledModel, manifest: EngineManifest, name: str) -> None:
    """The graph must be the one that the manifest describes: ids are checked against the manifest's numbers."""
    vocabulary = int(list(compiled.outputs[0].get_partial_shape())[-1].get_length())
    if vocabulary != manifest.model.vocab_size:
        raise EngineLoadError(f"{name}: manifest says vocab_size {manifest.model.vocab_size}, got {vocabulary}")
    layers = sum(port.get_any_name().startswith("key_cache.") for port in compiled.inputs)
    if layers != manifest.model.layers:
        raise EngineLoadError(f"{name}: manifest says {manifest.model.layers} layers, got {layers}")


def _check_same_cache(forms: Sequence[ov.CompiledModel]) -> None:
    """Both forms read and write the same blocks."""
    for kind in ("key_cache", "value_cache"):
        first, *others = (cache_ports(form, kind) for form in forms)
        if any(ports != first for ports in others):
            raise EngineLoadError(f"{WIDE_NAME}: its {kind} is laid out otherwise than that of {MODEL_NAME}")


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
