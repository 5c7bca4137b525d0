"""`firsttoken build --export`: an engine through optimum-intel, in its environment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from build_scripts.errors import UnsupportedError
from build_scripts.export.build import ExportRequest, build, make_plan
from build_scripts.numerics import NumericsWish
from build_scripts.source import default_cache
from firsttoken.build_output import ConsoleReporter
from firsttoken.export_output import ExportOutput
from firsttoken.servable import require_servable


def build_exported(args: argparse.Namespace) -> int:
    """0 = the engine is there. Raises BuildError."""
    if args.engine == "trtllm":
        raise UnsupportedError("--export makes engines for openvino; --engine trtllm builds from its own description")
    output = ExportOutput(as_json=args.json)
    weights: Any = args.weights  # make_plan refuses what an export does not have
    request = ExportRequest(
        model=args.model,
        output=Path(args.output) if args.output else None,
        wish=NumericsWish(weights, args.kv_cache, args.activations),
        cache=default_cache(),
    )
    with ConsoleReporter() as reporter:
        plan = make_plan(request, reporter)
    require_servable(plan.words.tokenizer, plan.words.info)
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
