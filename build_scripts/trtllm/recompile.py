"""A compiled engine, asked again: is it stale on this machine, and the same engine once more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from build_scripts.checkpoint import open_checkpoint
from build_scripts.errors import BuildError
from build_scripts.progress import Reporter
from build_scripts.stages import Finished, StageState, explain
from build_scripts.target_device import TargetDevice
from build_scripts.trtllm import build as checkpoint_build
from build_scripts.trtllm.build import CheckpointPlan
from build_scripts.trtllm.compile import STAGE, Compilation, compile_engine, plan_of, stage_inputs
from build_scripts.trtllm.engine_plan import EngineWish, engine_place
from build_scripts.trtllm.limits import LimitsWish
from build_scripts.trtllm.prove import PROBE_TEXT, prove_greedy, read_probes
from engines.manifest_file import read_manifest
from engines.trtllm.machine import observe_machine
from engines.trtllm.preflight import facts_of


def checkpoint_of(engine: Path) -> Path:
    """Where the checkpoint of an engine lies: beside it, as build puts them. Raises BuildError for an engine that was renamed."""
    checkpoint = engine.with_name(engine.name.removesuffix("-engine"))
    if engine_place(checkpoint) != engine:
        raise BuildError(
            f"{engine}: a compiled engine is rebuilt in its place beside its checkpoint, NAME-engine beside NAME"
        )
    return checkpoint


class Recompile:
    """The plan is the recorded one; the machine is the one here. Raises BuildError and EngineLoadError."""

    def __init__(self, directory: Path, checkpoint: CheckpointPlan) -> None:
        self._manifest = read_manifest(directory, "trtllm")
        self._directory = directory
        self._checkpoint = checkpoint
        self._machine = observe_machine()
        facts = facts_of(self._manifest, directory)
        gpu = self._machine.gpus[0] if self._machine.gpus else None
        device = (
            TargetDevice(facts.gpu_name, facts.gpu_memory, facts.compute_capability)
            if gpu is None
            else TargetDevice(gpu.name, gpu.memory, gpu.compute_capability)
        )
        profile: Any = facts.profile
        limits = LimitsWish(
            facts.max_batch_size, facts.max_num_tokens, facts.max_seq_len, facts.max_lora_rank, facts.lora_modules
        )
        self._plan = plan_of(checkpoint, EngineWish(profile, limits, device))

    def stages(self) -> list[StageState]:
        """Stale where library, TensorRT, GPU architecture, recipe or weights are others than those recorded."""
        inputs = stage_inputs(self._plan, self._checkpoint.fingerprint, self._machine)
        return explain(Finished(self._directory, self._manifest.stages), [(STAGE, inputs)])

    def run(self, reporter: Reporter) -> None:
        record = checkpoint_build.build(self._checkpoint, reporter)
        source = open_checkpoint(self._checkpoint.source.path)
        work = Compilation(self._plan, record, source.tokenizer, source.tokenizer_info, self._machine)
        probes = read_probes(None, source.tokenizer.encode(PROBE_TEXT).ids)
        compile_engine(work, lambda *proof: prove_greedy(probes, *proof), reporter)
