"""`firsttoken build --export`: an engine through optimum-intel, in its environment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from build_scripts.errors import UnsupportedError
from build_scripts.export.build import ExportPlan, ExportRequest, build, make_plan
from build_scripts.numerics import NumericsWish
from build_scripts.progress import Reporter
from build_scripts.source import default_cache
from firsttoken.build_course import follow
from firsttoken.export_output import ExportOutput
from firsttoken.servable import require_servable


def build_exported(args: argparse.Namespace) -> int:
    """0 = the engine is there. Raises BuildError."""
    if args.engine == "trtllm":
        raise UnsupportedError("--export makes engines for openvino; --engine trtllm builds from its own description")
    weights: Any = args.weights  # make_plan refuses what an export does not have
    request = ExportRequest(
        model=args.model,
        output=Path(args.output) if args.output else None,
        wish=NumericsWish(weights, args.kv_cache, args.activations),
        cache=default_cache(),
    )

    def servable_plan(reporter: Reporter) -> ExportPlan:
        plan = make_plan(request, reporter)
        require_servable(plan.words.tokenizer, plan.words.info)
        return plan

    return follow(args, servable_plan, build, ExportOutput(as_json=args.json))
