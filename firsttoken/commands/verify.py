"""`firsttoken verify`: is what was built whole, and does it compute what its source computes?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "check that what was built is whole and computes what its source computes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="an engine or a TensorRT-LLM checkpoint")
    parser.add_argument(
        "--source",
        metavar="MODEL",
        help="what it was built from: the rank files are run against it, in float64 and in lock-step, before GPU hours are spent",
    )
    parser.add_argument("--tokens", type=int, default=24, help="length of the sequence that both sides run (24)")


def run(args: argparse.Namespace) -> int:
    """0 = it is; 1 = it is not, and one sentence on stderr says what."""
    from build_scripts.errors import BuildError
    from engines.contract import EngineLoadError

    try:
        print(_verify(args.directory, args.source, args.tokens))  # noqa: T201 - a command prints
    except (BuildError, EngineLoadError) as error:
        print(f"firsttoken verify: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _verify(directory: Path, model: str | None, tokens: int) -> str:
    from build_scripts.errors import UnsupportedError
    from build_scripts.trtllm.record import RECORD_NAME
    from build_scripts.trtllm.verify import verify_against, verify_files

    if tokens < 1:
        raise UnsupportedError(f"--tokens must be at least 1, given {tokens}")
    if not (directory / RECORD_NAME).exists():
        return _verify_engine(directory)
    if model is None:
        record = verify_files(directory)
        return f"{directory}: all {len(record.files)} files are what was built; --source MODEL runs them against their source"
    proof = verify_against(directory, _source(model), tokens)
    return (
        f"{directory}: {proof.tokens} tokens through the rank files alone give the source's log-probabilities, "
        f"at most {proof.max_difference:.1e} apart"
    )


def _verify_engine(directory: Path) -> str:
    from build_scripts.errors import VerificationError
    from build_scripts.inspection import inspect_engine

    inspection = inspect_engine(directory)
    if not inspection.servable:
        raise VerificationError("; ".join(inspection.problems))
    numerics = inspection.manifest.numerics
    return (
        f"{directory}: all {len(inspection.manifest.files)} files are what was built and verified "
        f"({numerics.golden_positions} positions against {numerics.golden_reference}) and this machine can serve them"
    )


def _source(model: str) -> Path:
    from build_scripts.source import default_cache, resolve

    return resolve(model, cache=default_cache(), progress=lambda _: None).path
