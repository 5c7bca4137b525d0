"""What the checks of `make gpu-check` share: the engines that they build once, the reference, and how to start an executor."""

from __future__ import annotations

import inspect
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from engines.contract import EngineLoadError, RequestExecutor
from engines.manifest_file import read_manifest
from engines.trtllm.machine import Machine, observe_machine

PROMPTS = ("The capital of France is", "def fibonacci(n):", "Once upon a time", "Water boils at")
NEW_TOKENS = 32


class NotHereError(Exception):
    """This machine lacks what the question is about; the text says what."""


@dataclass
class Workbench:
    model: str
    nvidia_converter: Path | None
    folder: Path
    machine: Machine = field(default_factory=observe_machine)

    def environment(self) -> dict[str, Any]:
        return {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "tensorrt_llm": self.machine.tensorrt_llm,
            "tensorrt": self.machine.tensorrt,
            "cuda": self.machine.cuda,
            "driver": self.machine.driver,
            "gpus": [vars(gpu) for gpu in self.machine.gpus],
        }

    def require(self, gpus: int = 1) -> None:
        """Raises NotHereError."""
        if self.machine.tensorrt_llm is None:
            raise NotHereError("TensorRT-LLM is not installed")
        if len(self.machine.gpus) < gpus:
            raise NotHereError(f"needs {gpus} GPUs, found {len(self.machine.gpus)}")

    def engine(self, tp: int) -> Path:
        """Built once; the build's own proof is part of check 3."""
        checkpoint = self.folder / f"tp{tp}"
        engine = self.folder / f"tp{tp}-engine"
        if not engine.exists():
            self.require(tp)
            options = ["--engine", "trtllm", "--stage", "engine", "--tp", str(tp), "--max-seq-len", "2048"]
            reference = ["--reference", str(self.reference())]
            self.firsttoken("build", self.model, *options, *reference, "--output", str(checkpoint))
        return engine

    def reference(self) -> Path:
        """Greedy continuations by transformers, on the CPU in float32."""
        path = self.folder / "reference.json"
        if not path.exists():
            path.write_text(json.dumps(_transformers_greedy(self.model)))
        return path

    def firsttoken(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "firsttoken", *arguments], capture_output=True, text=True, timeout=3600, check=False
        )
        if done.returncode:
            raise RuntimeError(f"firsttoken {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-4000:]}")
        return done.stdout


def with_executor(engine: Path, use: Callable[[RequestExecutor], Any]) -> Any:  # noqa: ANN401 - whatever ``use`` finds
    """An engine of one rank, in this process."""
    from engines.trtllm.loading import load
    from engines.trtllm.settings import ExecutorSettings

    executor = load(engine, read_manifest(engine, "trtllm"), ExecutorSettings())
    try:
        return use(executor)
    finally:
        executor.close()


def greedy_log(engine: Path, ranks: int) -> list[str]:
    """What a start that must fail says."""
    command = ["mpirun", "-n", str(ranks), "--bind-to", "none", "--oversubscribe", sys.executable, "-m", "mpi4py"]
    arguments = ["-m", "build_scripts.trtllm.greedy", str(engine), "/dev/null", "/dev/null"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode == 0:
        raise EngineLoadError(f"{engine} on {ranks} ranks started, and should not have")
    return (done.stdout + done.stderr).splitlines()


def _transformers_greedy(model: str) -> dict[str, Any]:
    try:
        torch, transformers = import_module("torch"), import_module("transformers")
    except ImportError as error:
        raise NotHereError(f"{error.name} is not installed, and the reference is made with it") from error
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    reference = transformers.AutoModelForCausalLM.from_pretrained(model, torch_dtype=torch.float32)
    probes = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        said = reference.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=-1)
        probes.append({"prompt": ids[0].tolist(), "expected": said[0, ids.shape[1] :].tolist()})
    return {"reference": f"transformers {transformers.__version__}, torch {torch.__version__}", "probes": probes}


def differing_tensors(ours: Path, theirs: Path) -> list[str]:
    """Names of tensors that are not the same bytes, or not in both. Raises AssertionError where there are any."""
    from build_scripts.safetensors_file import SafetensorsFile

    differing = []
    for path in sorted(ours.glob("rank*.safetensors")):
        mine, other = SafetensorsFile(path), SafetensorsFile(theirs / path.name)
        for name in sorted(mine.entries.keys() | other.entries.keys()):
            same = name in mine.entries and name in other.entries and (mine.read(name) == other.read(name)).all()
            if not same:
                differing.append(f"{path.name}: {name}")
    if differing:
        raise AssertionError(f"{len(differing)} tensors differ: {differing[:20]}")
    return differing


def signature(module: str, name: str) -> str:
    try:
        return str(inspect.signature(getattr(import_module(module), name)))
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        return f"not found: {error}"
