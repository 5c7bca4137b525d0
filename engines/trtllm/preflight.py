"""Manifest against machine, before CUDA is touched: each mismatch is one sentence with both values and the command that mends it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.contract import EngineLoadError
from engines.manifest import EngineManifest
from engines.trtllm.adapters import Adapter
from engines.trtllm.facts import TensorRtFacts
from engines.trtllm.machine import Machine
from engines.trtllm.native import HOW_TO_GET_IT, PINNED
from engines.trtllm.settings import USABLE_SHARE, ExecutorSettings, kv_tokens

REBUILD = "`firsttoken rebuild {directory}` on this machine"
_LEAST_DRIVER = {"12": 525, "13": 580}
"""Branch of the driver that a CUDA release of this major number needs (NVIDIA's CUDA compatibility page)."""
_MEMORY_SLACK = 0.02
"""Boards of one name differ by their error correction."""
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Check:
    """One line of the table that `firsttoken inspect` prints."""

    name: str
    engine: str
    here: str
    problem: str | None
    """None where the two go together."""


def facts_of(manifest: EngineManifest, directory: Path) -> TensorRtFacts:
    """Raises EngineLoadError where the manifest has none."""
    if manifest.trtllm is None:
        raise EngineLoadError(
            f"{directory}: engine.json has no trtllm section, so nothing says what it runs on; build it again"
        )
    return manifest.trtllm


def checks(directory: Path, manifest: EngineManifest, machine: Machine, settings: ExecutorSettings) -> list[Check]:
    """All of them, in the order in which one would mend them. Hashes are not among them: see ``damaged_files``."""
    facts = facts_of(manifest, directory)
    rebuild = REBUILD.format(directory=directory)
    return [
        _library(facts, machine, rebuild),
        _tensorrt(facts, machine, rebuild),
        _cuda(facts, machine, rebuild),
        _driver(facts, machine),
        _ranks(facts, machine),
        _mpirun(machine),
        _architecture(facts, machine, rebuild),
        _memory(facts, machine, rebuild),
        _room(facts, settings),
        _adapters(facts, settings),
        _config(directory, facts, rebuild),
    ]


def mismatches(
    directory: Path, manifest: EngineManifest, machine: Machine, settings: ExecutorSettings, *, hashes: bool = True
) -> list[str]:
    """Why this machine cannot serve the engine; empty = it can, as far as can be told without running it."""
    found = [check.problem for check in checks(directory, manifest, machine, settings) if check.problem is not None]
    return [*found, *damaged_files(directory, manifest, hashes=hashes)]


def damaged_files(directory: Path, manifest: EngineManifest, *, hashes: bool) -> Iterator[str]:
    """Rank files that are missing, of another size or, with ``hashes`` (which reads every byte), not what was built."""
    again = f"copy the engine again, or build it again with {REBUILD.format(directory=directory)}"
    world = facts_of(manifest, directory).world_size
    named = {entry.name for entry in manifest.files}
    for rank in range(world):
        if f"rank{rank}.engine" not in named:
            yield f"engine.json names no rank{rank}.engine, but tp times pp makes {world} ranks: {again}"
    for entry in manifest.files:
        path = directory / entry.name
        if not path.is_file():
            yield f"{entry.name} is missing, engine.json says {entry.bytes} bytes: {again}"
        elif (size := path.stat().st_size) != entry.bytes:
            yield f"{entry.name} has {size} bytes, engine.json says {entry.bytes}: {again}"
        elif hashes and (digest := _sha256(path)) != entry.sha256:
            yield f"{entry.name} has sha256 {digest[:12]}…, engine.json says {entry.sha256[:12]}…: {again}"


# --------------------------------------------------------------------------- one each


def _library(facts: TensorRtFacts, machine: Machine, rebuild: str) -> Check:
    here, problem = machine.tensorrt_llm, None
    if here is None:
        problem = HOW_TO_GET_IT
    elif here != facts.tensorrt_llm:
        mend = f"pip install tensorrt-llm=={facts.tensorrt_llm}" if facts.tensorrt_llm == PINNED else rebuild
        problem = f"the engine was compiled by TensorRT-LLM {facts.tensorrt_llm}, this machine has {here}: {mend}"
    return Check("TensorRT-LLM", facts.tensorrt_llm, here or "not installed", problem)


def _tensorrt(facts: TensorRtFacts, machine: Machine, rebuild: str) -> Check:
    """A plan is bound to the release that wrote it; its fourth number is a package's build."""
    here, problem = machine.tensorrt, None
    if machine.tensorrt_llm is not None and _release(here) != _release(facts.tensorrt):
        problem = (
            f"the engine was written by TensorRT {facts.tensorrt}, this machine has {here or 'none'}: "
            f"pip install tensorrt=={facts.tensorrt}, or {rebuild}"
        )
    return Check("TensorRT", facts.tensorrt, here or "not installed", problem)


def _cuda(facts: TensorRtFacts, machine: Machine, rebuild: str) -> Check:
    here, problem = machine.cuda, None
    if here is not None and _major(here) != _major(facts.cuda):
        problem = f"the engine was compiled with CUDA {facts.cuda}, this machine has {here}: {rebuild}"
    return Check("CUDA", facts.cuda, here or "not installed", problem)


def _driver(facts: TensorRtFacts, machine: Machine) -> Check:
    here, problem = machine.driver, None
    least = _LEAST_DRIVER.get(_major(facts.cuda), 0)
    if here is None:
        problem = (
            "nvidia-smi is not there, so no GPU driver is: install NVIDIA's driver "
            f"({least} or later), or start the container with --gpus all"
        )
    elif int(_major(here)) < least:
        problem = (
            f"CUDA {facts.cuda} needs driver {least} or later, this machine has {here}: bring the driver up to date, or, on a data-centre "
            "GPU, install the cuda-compat package and set engine.preflight to warn"
        )
    return Check("driver", f"{facts.driver} (at least {least})", here or "none", problem)


def _ranks(facts: TensorRtFacts, machine: Machine) -> Check:
    here, needed = len(machine.gpus), facts.world_size
    problem = None
    if here < needed:
        problem = (
            f"engine needs tp={facts.tp}·pp={facts.pp}, so {needed} GPUs, found {here}: make them visible "
            f"(the container's --gpus, CUDA_VISIBLE_DEVICES), or build with --tp {max(here, 1)} --pp 1"
        )
    return Check("GPUs", f"{needed} (tp {facts.tp}, pp {facts.pp})", str(here), problem)


def _mpirun(machine: Machine) -> Check:
    problem = None
    if machine.mpirun is None:
        problem = "mpirun is not on PATH, and TensorRT-LLM's ranks are started by it: install Open MPI (apt-get install openmpi-bin)"
    return Check("mpirun", "needed", machine.mpirun or "not found", problem)


def _architecture(facts: TensorRtFacts, machine: Machine, rebuild: str) -> Check:
    """case_A3."""
    used = machine.gpus[: facts.world_size]
    others = sorted({gpu.compute_capability for gpu in used} - {facts.compute_capability})
    problem = None
    if others:
        gpu = next(gpu for gpu in used if gpu.compute_capability == others[0])
        problem = (
            f"the engine was compiled for compute capability {facts.compute_capability} ({facts.gpu_name}), GPU "
            f"{used.index(gpu)} here is a {gpu.name} of {gpu.compute_capability}: {rebuild}"
        )
    here = ", ".join(dict.fromkeys(f"{gpu.name} {gpu.compute_capability}" for gpu in used))
    return Check("architecture", f"{facts.gpu_name} {facts.compute_capability}", here or "none", problem)


def _memory(facts: TensorRtFacts, machine: Machine, rebuild: str) -> Check:
    used = machine.gpus[: facts.world_size]
    least = min((gpu.memory for gpu in used), default=None)
    problem = None
    if least is not None and least < (1 - _MEMORY_SLACK) * facts.gpu_memory:
        problem = (
            f"the engine was planned for GPUs of {_gib(facts.gpu_memory)}, the smallest here has {_gib(least)}: {rebuild}, or "
            f"give keys and values less with engine.kv_bytes and set engine.preflight to warn"
        )
    return Check("GPU memory", _gib(facts.gpu_memory), "none" if least is None else _gib(least), problem)


def _room(facts: TensorRtFacts, settings: ExecutorSettings) -> Check:
    """case_B1: a pool that cannot hold one longest sequence would let requests wait for ever."""
    try:
        tokens, problem = kv_tokens(facts, settings), None
    except EngineLoadError as error:
        tokens, problem = 0, str(error)
    usable = _gib(int(USABLE_SHARE * facts.gpu_memory))
    return Check(
        "keys and values", f"at least {facts.max_seq_len:,} tokens", f"{tokens:,} tokens of {usable} usable", problem
    )


def _adapters(facts: TensorRtFacts, settings: ExecutorSettings) -> Check:
    """The first that does not fit; one after the other they are mended."""
    fits = f"up to rank {facts.max_lora_rank}" if facts.max_lora_rank else "none"
    names = ", ".join(adapter.name for adapter in settings.adapters) or "none"
    problem = next(filter(None, (_adapter(facts, adapter) for adapter in settings.adapters)), None)
    return Check("adapters", fits, names, problem)


def _adapter(facts: TensorRtFacts, adapter: Adapter) -> str | None:
    if not facts.max_lora_rank:
        return (
            f"engine.adapters has {adapter.name}, the engine was compiled without adapters: build it again with --lora-rank, "
            "or leave engine.adapters empty"
        )
    if adapter.missing:
        return (
            f"adapter {adapter.name} lacks {' and '.join(adapter.missing)} in {adapter.directory}: convert it with TensorRT-LLM's "
            f"hf_lora_convert.py -i ADAPTER -o {adapter.directory}"
        )
    try:
        rank = adapter.rank
    except EngineLoadError as error:
        return str(error)
    if rank > facts.max_lora_rank:
        return (
            f"adapter {adapter.name} has rank {rank}, the engine was compiled for at most {facts.max_lora_rank}: build it again with "
            f"--lora-rank {rank}"
        )
    return None


def _config(directory: Path, facts: TensorRtFacts, rebuild: str) -> Check:
    """The library lets an engine's own limits win over everything else, with a warning: so they must be those of the manifest."""
    try:
        document = json.loads((directory / "config.json").read_bytes())
        differing = list(_differing(document, facts))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Check("limits", "engine.json", "config.json", f"config.json cannot be read ({error!r}): {rebuild}")
    problem = f"config.json and engine.json differ in {'; '.join(differing)}: {rebuild}" if differing else None
    return Check("limits", "engine.json", "config.json", problem)


def _differing(document: dict[str, Any], facts: TensorRtFacts) -> Iterator[str]:
    build, mapping = document["build_config"], document["pretrained_config"]["mapping"]
    pairs = {
        "version": (document["version"], facts.tensorrt_llm),
        "tp_size": (mapping["tp_size"], facts.tp),
        "pp_size": (mapping["pp_size"], facts.pp),
        "max_batch_size": (build["max_batch_size"], facts.max_batch_size),
        "max_num_tokens": (build["max_num_tokens"], facts.max_num_tokens),
        "max_input_len": (build["max_input_len"], facts.max_input_len),
        "max_seq_len": (build["max_seq_len"], facts.max_seq_len),
        "tokens_per_block": (build["plugin_config"]["tokens_per_block"], facts.tokens_per_block),
    }
    # Without it the library turns chunked context off, with a warning, and refuses prompts longer than a step.
    pairs["use_paged_context_fmha"] = (build["plugin_config"].get("use_paged_context_fmha", True), True)
    for name, (said, told) in pairs.items():
        if said != told:
            yield f"{name} ({said} and {told})"


def _major(text: str) -> str:
    return text.split(".", 1)[0]


def _release(text: str | None) -> list[str] | None:
    return None if text is None else text.split(".")[:3]


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
