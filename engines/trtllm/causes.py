"""What TensorRT-LLM and TensorRT say when they fail, and what it means: the exception is often only the generic last line, and the
line that tells is in the log, so both are looked at.

The texts are from public issues and sources of the releases around 1.2.1; none was provoked on this project's machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

REBUILD = "compile it again on this machine with `firsttoken rebuild`"


@dataclass(frozen=True)
class Cause:
    """``help`` may refer to what ``pattern`` captured, by name."""

    key: str
    pattern: re.Pattern[str]
    help: str
    generic: bool = False
    """Says only that something failed: any other cause in the same log comes first."""


def _cause(key: str, pattern: str, help_: str, *, generic: bool = False) -> Cause:
    return Cause(key, re.compile(pattern), help_, generic)


CAUSES: tuple[Cause, ...] = (
    _cause(
        "stub-package",
        r"special placeholder package which downloads a real wheel",
        "only the placeholder of TensorRT-LLM on PyPI was reached; its wheel is on NVIDIA's index: add "
        "`--extra-index-url https://pypi.nvidia.com` to pip install",
    ),
    _cause(
        "gpu-architecture",
        r"generated on an incompatible device, expecting compute (?P<engine>[\d.]+) got compute (?P<here>[\d.]+)",
        "the engine was compiled for GPUs of compute capability {engine}, this GPU has {here}: " + REBUILD,
    ),
    _cause(
        "tensorrt-version",
        r"Version tag does not match\. Note: Current Version: (?P<here>\d+), Serialized Engine Version: (?P<engine>\d+)",
        "the engine was written by another TensorRT (format {engine}, this one reads {here}): " + REBUILD,
    ),
    _cause(
        "mpi-world",
        r"MPI size (?P<here>\d+) != TP size (?P<tp>\d+) \* PP size (?P<pp>\d+)",
        "{here} ranks were started for an engine of tp {tp} and pp {pp}: start it with `firsttoken serve ENGINE`, which starts as many "
        "as the manifest says, not with mpirun by hand",
    ),
    _cause(
        "mpi-world-unspecified",
        r"MPI worldSize is expected to be equal to tp\*pp|mpiSize == tp \* pp",
        "the number of ranks is not that of the engine's tp times pp: start it with `firsttoken serve ENGINE`, which starts as many as the "
        "manifest says, not with mpirun by hand",
    ),
    _cause(
        "tp-conflict",
        r"tp_size (?P<asked>\d+) is not consistent with the engine's tp_size (?P<engine>\d+)",
        "tp {asked} was asked for, the engine was compiled for tp {engine}: leave tp to the engine, or build again with --tp {asked}",
    ),
    _cause(
        "too-few-gpus",
        r"Only (?P<here>\d+) GPUs are available, but (?P<engine>\d+) are required",
        "the engine needs {engine} GPUs and {here} can be seen: make them visible (CUDA_VISIBLE_DEVICES, the container's --gpus), or build "
        "again with --tp {here}",
    ),
    _cause(
        "too-few-gpus-log",
        r"gpusPerNode is (?P<per_node>\d+) and mpiSize is (?P<engine>\d+), but only (?P<here>\d+) GPUs detected",
        "{engine} ranks were started and {here} GPUs can be seen: make them visible (CUDA_VISIBLE_DEVICES, the container's --gpus), or "
        "build again with --tp {here}",
    ),
    _cause(
        "wrong-ranks",
        r"engine built for (?P<engine>\d+) ranks, while currently running on (?P<here>\d+) ranks",
        "the engine was compiled for {engine} ranks and runs on {here}: start it with `firsttoken serve ENGINE`",
    ),
    _cause(
        "no-config",
        r"Failed to infer model format because no config\.json exists in (?P<where>\S+)",
        "{where} holds no config.json, so it is no compiled engine: build one with `firsttoken build MODEL --engine trtllm`",
    ),
    _cause(
        "bad-config",
        r"Inferred model format (?P<format>\S+), but failed to load config\.json: (?P<why>.+)",
        "config.json cannot be read ({why}): the directory is damaged; " + REBUILD,
    ),
    _cause(
        "too-long",
        r"The sum of prompt length \((?P<prompt>[\d.]+)\).*max_tokens \((?P<tokens>[\d.]+)\) should not exceed max_seq_len \((?P<limit>[\d.]+)\)",
        "a prompt of {prompt} tokens and max_tokens {tokens} exceed max_seq_len {limit}, which is fixed when an engine is compiled: ask for "
        "less, or build with a greater --max-seq-len",
    ),
    _cause(
        "kv-memory",
        r"(?i)out of memory|cudaErrorMemoryAllocation|OOM",
        "the GPU ran out of memory: give keys and values less (engine.kv_bytes), or build with smaller --max-batch-size or "
        "--max-num-tokens; `firsttoken build --dry-run` prints the bill",
    ),
    _cause(
        "adapter-not-cached",
        r"LoRA task (?P<task>\d+) not found in cache",
        "adapter {task} (counted from 1, by name) is not in the executor's cache: it had no room for all of engine.adapters; have fewer, or "
        "of a lower rank",
    ),
    _cause(
        "adapter-cache-full",
        r"(?:PEFT|LoRA) [Cc]ache is full|Cache is full\. There are no done tasks to evict",
        "the executor's cache of adapters is full: have fewer in engine.adapters, or of a lower rank",
    ),
    _cause("shutting-down", r"LLM is shutting down", "the executor is shutting down: it takes nothing any more"),
    _cause(
        "shared-python",
        r"libpython(?P<version>3\.\d+)\.so[\d.]*: cannot open shared object file",
        "TensorRT-LLM needs a Python {version} with its shared library, which this interpreter was built without: install the system's "
        "libpython{version}, or rebuild the interpreter with --enable-shared",
    ),
    _cause(
        "missing-library",
        r"(?P<library>lib[\w.+-]+\.so[\d.]*): cannot open shared object file",
        "the shared library {library} is missing: CUDA, TensorRT or MPI are not installed whole; the image of `docker build --target gpu` has them",
    ),
    _cause(
        "worker-died",
        r"Executor worker (?:died during initialization|returned error)",
        "a rank ended while the engine was loading; the lines above it in the log say why",
        generic=True,
    ),
    _cause(
        "build-failed",
        r"Engine building failed, please check error log",
        "trtllm-build failed on one of the ranks; the lines above it in the log say why",
        generic=True,
    ),
    _cause(
        "no-workers",
        r"max_workers must be greater than 0",
        "trtllm-build found no GPU: it compiles only on a machine with the GPUs that it compiles for",
    ),
    _cause(
        "deserialise",
        r"Failed to deserialize cuda engine",
        "TensorRT cannot read the engine: it was compiled by another version or for another GPU, or is damaged; `firsttoken inspect ENGINE` "
        "compares them, " + REBUILD,
        generic=True,
    ),
)


def find_cause(texts: Iterable[str]) -> tuple[Cause, str] | None:
    """The first cause that the texts name, specific ones before generic ones, and its help. None where nothing is known."""
    lines = list(texts)
    for generic in (False, True):
        for line in lines:
            for cause in CAUSES:
                found = cause.pattern.search(line) if cause.generic is generic else None
                if found is not None:
                    return cause, cause.help.format(**found.groupdict())
    return None


def explain(message: str, log: Iterable[str] = ()) -> str:
    """``message``, and what it means where that is known; ``log`` holds the lines that led to it."""
    first = message.strip().splitlines()[0] if message.strip() else "no reason was given"
    found = find_cause([*log, message])
    return first if found is None else f"{found[1]} (TensorRT-LLM: {first})"
