"""The manifest of a build: what is known when the graph is written, and what verification then found."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from build_scripts import graph
from build_scripts.decoder import Decoder
from build_scripts.numerics import NumericsChoice
from build_scripts.publish import list_files
from build_scripts.verify import Fidelity
from engines.manifest import SCHEMA_VERSION, EngineManifest, ModelShape, Numerics, Source, StepProfile
from engines.openvino.fitness import openvino_version

if TYPE_CHECKING:
    from build_scripts.build import Plan

UNMEASURED = StepProfile(0.0, 0.0, 0.0, 0.0, 0.0, machine="", relative_error=0.0)


def provisional_manifest(plan: Plan, scratch: Path) -> EngineManifest:
    """Provisional: what the runner needs to load the engine; numerics and profile are what is hoped for until measured."""
    source = plan.source
    return EngineManifest(
        schema_version=SCHEMA_VERSION,
        engine="openvino",
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        fingerprint=plan.fingerprint,
        recipe=graph.RECIPE,
        model=model_shape(plan.decoder),
        source=Source(
            name=source.name,
            kind=plan.checkpoint.kind,
            origin=source.origin,
            sha256=source.sha256,
            quantisation=plan.checkpoint.tensors.quantisation(),
            licence=source.licence or plan.checkpoint.licence or "not stated",
        ),
        numerics=hoped_numerics(plan.choice),
        profile=UNMEASURED,
        tokenizer=plan.checkpoint.tokenizer_info,
        tools=tool_versions(),
        files=list_files(scratch),
    )


def hoped_numerics(choice: NumericsChoice) -> Numerics:
    """What is asked for, before anything is compared."""
    return Numerics(
        weights=choice.weights,
        kv_cache=choice.kv_cache,
        activations=choice.activations,
        dynamic_quantisation=False,
        batch_invariant=choice.batch_invariant,
        golden_positions=0,
        golden_argmax_agreement=0.0,
        golden_max_difference=0.0,
        golden_mean_difference=0.0,
        tolerance=0.0,
        wide_weights=choice.wide_weights or "",
    )


def with_findings(
    manifest: EngineManifest, choice: NumericsChoice, fidelity: Fidelity, profile: StepProfile
) -> EngineManifest:
    numerics = msgspec.structs.replace(
        hoped_numerics(choice),
        golden_reference=fidelity.reference,
        golden_positions=fidelity.positions,
        golden_argmax_agreement=fidelity.argmax_agreement,
        golden_max_difference=fidelity.max_difference,
        golden_mean_difference=fidelity.mean_difference,
        golden_greedy_equal=fidelity.greedy_equal,
        golden_greedy_total=fidelity.greedy_total,
        tolerance=fidelity.tolerance,
    )
    return msgspec.structs.replace(manifest, numerics=numerics, profile=profile)


def model_shape(decoder: Decoder) -> ModelShape:
    return ModelShape(
        family=decoder.family,
        layers=decoder.layers,
        hidden=decoder.hidden,
        intermediate=decoder.intermediate,
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        vocab_size=decoder.vocab_size,
        max_context=decoder.static_context,
        parameters=decoder.parameters(),
    )


def tool_versions() -> dict[str, str]:
    """Versions of what built an engine."""
    found = {name: _version(name) for name in ("firsttoken", "gguf", "numpy", "tokenizers")}
    return found | {"openvino": openvino_version(), "python": platform.python_version()}


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"  # run from a source tree
