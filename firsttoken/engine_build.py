"""`firsttoken build --engine trtllm --stage engine`: convert where that is not done yet, compile, prove, publish; or only plan."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from build_scripts.checkpoint import Checkpoint, open_checkpoint
from build_scripts.errors import UnsupportedError
from build_scripts.source import default_cache
from build_scripts.target_device import TargetDevice, target_device
from build_scripts.trtllm import build as checkpoint_build
from build_scripts.trtllm.build import CheckpointRequest
from build_scripts.trtllm.compile import Compilation, compile_engine, plan_of, require_machine
from build_scripts.trtllm.engine_plan import (
    EnginePlan,
    EngineWish,
    is_config_alone,
    plan_from_config,
)
from build_scripts.trtllm.layout import Layout
from build_scripts.trtllm.limits import LimitsWish
from build_scripts.trtllm.prove import PROBE_TEXT, prove_greedy, read_probes
from engines.trtllm.machine import observe_machine
from firsttoken.build_output import ConsoleReporter
from firsttoken.engine_output import EngineOutput


def build_engine(args: argparse.Namespace) -> int:
    """Raises BuildError and EngineLoadError."""
    output, request, wish = EngineOutput(as_json=args.json), _request(args), _wish(args)
    if is_config_alone(args.model):
        if not args.dry_run:
            raise UnsupportedError(
                f"{args.model} holds a config and no weights: add --dry-run for a plan, or fetch the weights"
            )
        plan = plan_from_config(request, wish)
        output.planned(plan, convert_command(args, plan))
        return 0
    with ConsoleReporter() as reporter:
        checkpoint = checkpoint_build.make_plan(request, reporter)
    plan = plan_of(checkpoint, wish)
    if args.dry_run:
        output.planned(plan, convert_command(args, plan))
        return 0
    machine = observe_machine()
    require_machine(machine, plan)  # before anything is converted
    with ConsoleReporter() as reporter:
        record = checkpoint_build.build(checkpoint, reporter, force=args.force)
        source: Checkpoint = open_checkpoint(checkpoint.source.path)
        work = Compilation(plan, record, source.tokenizer, source.tokenizer_info, machine)
        probes = read_probes(Path(args.reference) if args.reference else None, source.tokenizer.encode(PROBE_TEXT).ids)
        manifest = compile_engine(work, lambda *proof: prove_greedy(probes, *proof), reporter)
    output.built(plan, manifest)
    return 0


def convert_command(args: argparse.Namespace, plan: EnginePlan) -> str:
    layout = plan.conversion.layout
    words = ["firsttoken", "build", args.model, "--engine", "trtllm", "--tp", str(layout.tp), "--pp", str(layout.pp)]
    words += ["--dtype", plan.conversion.dtype, "--output", str(plan.checkpoint)]
    words += ["--weights", args.weights] if args.weights else []
    words += ["--share-embedding"] if args.share_embedding else []
    return shlex.join(words)


def _request(args: argparse.Namespace) -> CheckpointRequest:
    return CheckpointRequest(
        model=args.model,
        output=Path(args.output) if args.output else None,
        layout=Layout(args.tp, args.pp),
        dtype=args.dtype,
        weights=args.weights,
        share_embedding=args.share_embedding,
        cache=default_cache(),
    )


def _wish(args: argparse.Namespace) -> EngineWish:
    modules = tuple(filter(None, args.lora_modules.split(",")))
    limits = LimitsWish(args.max_batch_size, args.max_num_tokens, args.max_seq_len, args.lora_rank, modules)
    return EngineWish(args.profile, limits, _device(args.device))


def _device(name: str | None) -> TargetDevice:
    if name is not None:
        return target_device(name)
    here = observe_machine().gpus
    if not here:
        raise UnsupportedError(
            "no GPU is here to plan for: name one with --device, as --device H100 (or its size, 80GB)"
        )
    return TargetDevice(here[0].name, here[0].memory, here[0].compute_capability)
