"""Stage two, on a machine with the GPUs: a checkpoint of ours through trtllm-build to an engine in its place, proven before it is published."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import msgspec
from tokenizers import Tokenizer

from build_scripts import publish
from build_scripts.description import model_shape, tool_versions
from build_scripts.errors import BuildError, UnsupportedError, VerificationError
from build_scripts.progress import Reporter
from build_scripts.stages import Finished, Inputs, Stages, describe_file, stage_key
from build_scripts.trtllm.bill import TOKENS_PER_BLOCK
from build_scripts.trtllm.build import CheckpointPlan
from build_scripts.trtllm.engine_plan import RECIPE, TIMING_CACHE, EnginePlan, EngineWish, engine_place, plan_engine
from build_scripts.trtllm.greedy import GreedyProof
from build_scripts.trtllm.record import CheckpointRecord
from engines.contract import EngineLoadError
from engines.manifest import MANIFEST_NAME, SCHEMA_VERSION, EngineManifest, Numerics, StepProfile, TokenizerInfo
from engines.manifest_file import read_manifest
from engines.trtllm.causes import find_cause
from engines.trtllm.facts import TensorRtFacts
from engines.trtllm.machine import Machine
from engines.trtllm.native import HOW_TO_GET_IT, PINNED

Prove: TypeAlias = Callable[[Path, int, Reporter], GreedyProof]
"""Given an engine directory and its number of ranks. Raises VerificationError."""
STAGE = "engine"
_KEPT_LINES = 400


@dataclass(frozen=True)
class Compilation:
    plan: EnginePlan
    record: CheckpointRecord
    tokenizer: Tokenizer
    tokenizer_info: TokenizerInfo
    machine: Machine

    def inputs(self) -> Inputs:
        """What decides the engine, by names that `firsttoken rebuild` shows."""
        return stage_inputs(self.plan, self.record.fingerprint, self.machine)

    @property
    def fingerprint(self) -> str:
        return stage_key(STAGE, self.inputs())


def plan_of(checkpoint: CheckpointPlan, wish: EngineWish) -> EnginePlan:
    """The engine that comes of a checkpoint."""
    return plan_engine(
        checkpoint.source.name,
        checkpoint.conversion,
        checkpoint.opened.recipe,
        wish,
        checkpoint=checkpoint.output,
        output=engine_place(checkpoint.output),
    )


def stage_inputs(plan: EnginePlan, checkpoint: str, machine: Machine) -> Inputs:
    gpu = machine.gpus[0] if machine.gpus else None
    limits = plan.limits
    return {
        "weights": checkpoint,
        "recipe": RECIPE,
        "profile": plan.profile,
        "max_batch_size": str(limits.max_batch_size),
        "max_num_tokens": str(limits.max_num_tokens),
        "max_seq_len": str(limits.max_seq_len),
        "adapters": f"{limits.lora_rank} {' '.join(limits.lora_modules)}".strip(),
        "tensorrt_llm": machine.tensorrt_llm or "not installed",
        "tensorrt": machine.tensorrt or "not installed",
        "compute_capability": gpu.compute_capability if gpu else "no GPU",
    }


def require_machine(machine: Machine, plan: EnginePlan) -> None:
    """Raises UnsupportedError where this machine cannot compile the plan: compiling measures kernels on the very GPU."""
    if machine.tensorrt_llm is None:
        raise UnsupportedError(HOW_TO_GET_IT)
    if machine.tensorrt_llm != PINNED:
        raise UnsupportedError(
            f"TensorRT-LLM must be {PINNED}, here is {machine.tensorrt_llm}: pip install tensorrt-llm=={PINNED}"
        )
    world = plan.conversion.layout.world_size
    if len(machine.gpus) < world:
        raise UnsupportedError(
            f"the plan needs {world} GPUs, found {len(machine.gpus)}: compile where it is to be served"
        )
    gpu = machine.gpus[0]
    if plan.device.compute_capability not in (None, gpu.compute_capability):
        raise UnsupportedError(
            f"the plan is for {plan.device.name} of compute capability {plan.device.compute_capability}, this machine has "
            f"{gpu.name} of {gpu.compute_capability}: leave --device out to plan for what is here"
        )


def compile_engine(work: Compilation, prove: Prove, reporter: Reporter) -> EngineManifest:
    """Compile, prove and publish. Resumable: a killed build goes on behind the last stage that was done. Raises BuildError."""
    plan = work.plan
    require_machine(work.machine, plan)
    # A proof that fails does not cost the compilation, hours perhaps, once more.
    with publish.staging(plan.output, work.fingerprint, keep=(VerificationError,)) as scratch:
        stages = Stages(scratch, _standing(plan.output), reporter.note)
        stages.run(STAGE, work.inputs(), lambda: _compile(plan, scratch, reporter))
        work.tokenizer.save(str(scratch / "tokenizer.json"))
        provisional = _manifest(work, scratch, stages, None)
        (scratch / MANIFEST_NAME).write_bytes(msgspec.json.encode(provisional))
        try:
            proof = prove(scratch, plan.conversion.layout.world_size, reporter)
        except BuildError as error:
            raise VerificationError(str(error)) from error
        manifest = _manifest(work, scratch, stages, proof)
        stages.clear_markers()
        reporter.note(f"publishing {plan.output}")
        publish.publish(scratch, plan.output, manifest)
    return manifest


def _compile(plan: EnginePlan, scratch: Path, reporter: Reporter) -> list[str]:
    cache = plan.output.parent / TIMING_CACHE
    command = plan.command(scratch, cache)
    reporter.note(" ".join(command))
    run_logged(command, reporter)
    ranks = [f"rank{rank}.engine" for rank in range(plan.conversion.layout.world_size)]
    missing = [name for name in ["config.json", *ranks] if not (scratch / name).is_file()]
    if missing:
        raise BuildError(f"trtllm-build ended without {', '.join(missing)}; its log is above")
    return ["config.json", *ranks]


def run_logged(command: list[str], reporter: Reporter) -> None:
    """Run to the end, every line passed on. Raises BuildError with what the log means, where that is known."""
    program = shutil.which(command[0])
    if program is None:
        raise UnsupportedError(f"{command[0]} is not on PATH; {HOW_TO_GET_IT}")
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        [program, *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            kept.append(line.rstrip("\n"))
            reporter.note(kept[-1])
    if process.returncode == 0:
        return
    found = find_cause(kept)
    last = next((line for line in reversed(kept) if line.strip()), "it said nothing")
    meaning = found[1] if found is not None else f"its last line: {last}"
    raise BuildError(f"{command[0]} ended with status {process.returncode}: {meaning}")


def _standing(output: Path) -> Finished | None:
    try:
        return Finished(output, read_manifest(output, "trtllm").stages)
    except (EngineLoadError, OSError):
        return None


def _manifest(work: Compilation, scratch: Path, stages: Stages, proof: GreedyProof | None) -> EngineManifest:
    plan, record = work.plan, work.record
    conversion = plan.conversion
    staged = (path.name for path in scratch.iterdir() if path.is_file())
    names = sorted(name for name in staged if name != MANIFEST_NAME and not name.startswith("."))
    return EngineManifest(
        schema_version=SCHEMA_VERSION,
        engine="trtllm",
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        fingerprint=work.fingerprint,
        recipe=RECIPE,
        model=model_shape(conversion.decoder),
        source=record.source,
        numerics=Numerics(
            weights=conversion.quantisation.quant_algo or conversion.dtype,
            kv_cache=conversion.quantisation.kv_cache_quant_algo or conversion.dtype,
            activations=conversion.dtype,
            dynamic_quantisation=False,
            batch_invariant=False,
            golden_positions=0 if proof is None else proof.positions,
            golden_argmax_agreement=0.0 if proof is None else proof.agreement,
            golden_max_difference=0.0,
            golden_mean_difference=0.0,
            tolerance=0.0,
            golden_reference="" if proof is None else proof.reference,
            golden_greedy_equal=0 if proof is None else proof.equal,
            golden_greedy_total=0 if proof is None else proof.total,
        ),
        profile=StepProfile(0.0, 0.0, 0.0, 0.0, 0.0, machine="", relative_error=0.0),
        tokenizer=work.tokenizer_info,
        tools=tool_versions() | {"python": sys.version.split()[0], "tensorrt_llm": work.machine.tensorrt_llm or ""},
        files=tuple(describe_file(scratch, name) for name in names),
        stages=tuple(stages.records),
        trtllm=facts_of_plan(plan, work.machine),
    )


def facts_of_plan(plan: EnginePlan, machine: Machine) -> TensorRtFacts:
    gpu, limits, conversion = machine.gpus[0], plan.limits, plan.conversion
    return TensorRtFacts(
        tensorrt_llm=machine.tensorrt_llm or "",
        tensorrt=machine.tensorrt or "",
        cuda=machine.cuda or "",
        driver=machine.driver or "",
        gpu_name=gpu.name,
        compute_capability=gpu.compute_capability,
        gpu_memory=gpu.memory,
        tp=conversion.layout.tp,
        pp=conversion.layout.pp,
        profile=plan.profile,
        max_batch_size=limits.max_batch_size,
        max_num_tokens=limits.max_num_tokens,
        max_input_len=limits.max_input_len,
        max_seq_len=limits.max_seq_len,
        tokens_per_block=TOKENS_PER_BLOCK,
        kv_bytes_per_token=plan.bill.kv_per_token,
        kv_dtype=conversion.quantisation.kv_cache_quant_algo or conversion.dtype,
        weight_bytes=plan.bill.weights,
        workspace_bytes=plan.bill.workspace,
        max_attention_window=plan.windows,
        max_lora_rank=limits.lora_rank,
        lora_modules=limits.lora_modules,
    )
