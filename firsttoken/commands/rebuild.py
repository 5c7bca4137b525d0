"""`firsttoken rebuild`: which stages of what was built are stale and why; does only those."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "say which stages of an engine or checkpoint are stale and why, and do only those again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="an engine or a TensorRT-LLM checkpoint")
    parser.add_argument("--model", help="where its source is, if it was built from a path")
    parser.add_argument("--plan", action="store_true", help="say what is stale, and stop")


def run(args: argparse.Namespace) -> int:
    """0 = it is up to date now (with --plan: was explained); 1 = it is not, and one sentence on stderr says why."""
    from build_scripts.errors import BuildError
    from build_scripts.rebuild import plan_rebuild
    from build_scripts.source import default_cache
    from firsttoken.build_output import ConsoleReporter

    try:
        with ConsoleReporter() as reporter:
            rebuild = plan_rebuild(args.directory, args.model, default_cache(), reporter)
            for stage in rebuild.stages:
                print(f"{stage.name}: {'stale, ' if stage.stale else ''}{stage.why}")  # noqa: T201 - a command prints
            if rebuild.needed and not args.plan:
                rebuild.run(reporter)
                print(f"rebuilt {rebuild.output}")  # noqa: T201
    except BuildError as error:
        print(f"firsttoken rebuild: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0
