"""`firsttoken inspect`: what an engine is, and whether this machine can serve it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from build_scripts.inspection import Inspection
    from engines.manifest import Numerics, StepProfile

HELP = "print what an engine is, and whether this machine can serve it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", type=Path, help="an engine directory, as `firsttoken build` leaves it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """0 = this machine can serve the engine; 1 = it cannot, and the output says why."""
    import msgspec

    from build_scripts.inspection import inspect_engine
    from engines.contract import EngineLoadError

    try:
        inspection = inspect_engine(args.directory)
    except (EngineLoadError, OSError) as error:
        print(f"firsttoken inspect: {error}", file=sys.stderr)  # noqa: T201 - a command prints
        return 1
    if args.json:
        document = msgspec.to_builtins(inspection) | {"servable": inspection.servable}
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
        sys.stdout.buffer.flush()
    else:
        _print(inspection)
    return 0 if inspection.servable else 1


def _print(inspection: Inspection) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _facts(inspection):
        table.add_row(name, value)
    console.print(table)
    for note in inspection.notes:
        console.print(f"note: {note}", markup=False)
    for problem in inspection.problems:
        console.print(f"problem: {problem}", markup=False)
    console.print("this machine can serve it" if inspection.servable else "this machine cannot serve it", style="bold")


def _facts(inspection: Inspection) -> list[tuple[str, str]]:
    manifest = inspection.manifest
    model, source, numerics = manifest.model, manifest.source, manifest.numerics
    tools = ", ".join(f"{name} {version}" for name, version in sorted(manifest.tools.items()))
    size = f"{model.layers} layers of {model.hidden}, {model.parameters / 1e6:,.1f} M parameters"
    greedy = f"{numerics.golden_greedy_equal} of {numerics.golden_greedy_total} golden continuations, token for token"
    return [
        (
            "engine",
            f"{inspection.directory} ({manifest.engine}, recipe {manifest.recipe}, schema {manifest.schema_version})",
        ),
        ("fingerprint", manifest.fingerprint),
        ("built", f"{manifest.built_at} with {tools}"),
        ("model", f"{source.name}: {model.family}, {size}"),
        ("heads", f"{model.heads} of {model.head_dim}, {model.kv_heads} for keys and values"),
        ("context", f"{model.max_context:,} tokens; vocabulary {model.vocab_size:,}"),
        ("source", f"{source.origin}, sha256 {source.sha256}"),
        ("quantisation", f"{source.quantisation}; licence {source.licence}"),
        (
            "numerics",
            f"weights {numerics.weights}{_wide(numerics)}, keys and values {numerics.kv_cache}, activations {numerics.activations}",
        ),
        ("fidelity", _fidelity(numerics)),
        ("greedy", greedy),
        ("batching", f"log-probabilities within {numerics.tolerance:.2g} of those alone"),
        ("step", _step(manifest.profile)),
        *(("file", f"{entry.name}, {entry.bytes:,} bytes, sha256 {entry.sha256}") for entry in manifest.files),
    ]


def _wide(numerics: Numerics) -> str:
    return f" ({numerics.wide_weights} in steps of many tokens)" if numerics.wide_weights else ""


def _fidelity(numerics: Numerics) -> str:
    return (
        f"likeliest token as in {numerics.golden_reference or 'nothing'} at {numerics.golden_argmax_agreement:.2%} of "
        f"{numerics.golden_positions} positions; off by {numerics.golden_mean_difference:.2g} on average, "
        f"{numerics.golden_max_difference:.2g} at most"
    )


def _step(profile: StepProfile) -> str:
    return (
        f"{1e3 * profile.fixed:.2f} ms + {1e6 * profile.per_new_token:.0f} us a prompt token + "
        f"{1e6 * profile.per_decode:.0f} us a decode + {1e9 * profile.per_decode_context:.0f} ns a token of their contexts "
        f"(median error {profile.relative_error:.0%}; {profile.machine})"
    )
