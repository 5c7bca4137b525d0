"""The way of an architecture that this project does not describe: exporter -> graph -> proof -> the same engine directory."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from build_scripts import publish
from build_scripts.checkpoint import card_licence
from build_scripts.description import UNMEASURED, hoped_numerics, tool_versions
from build_scripts.errors import UnsupportedError
from build_scripts.export.environment import Environment, find_environment
from build_scripts.export.exported import (
    REFERENCE_NAME,
    check_config,
    describe_graph,
    max_context,
    read_reference,
    vocabulary,
)
from build_scripts.golden.reference import Golden
from build_scripts.hf_checkpoint import open_shards, read_json, refuse_quantised
from build_scripts.hf_tokenizer import HfTokenizer
from build_scripts.host import require_room
from build_scripts.inspection import is_intact
from build_scripts.numerics import NumericsChoice, NumericsWish, fingerprint
from build_scripts.profile import machine
from build_scripts.progress import Reporter
from build_scripts.proof import PROBE_TEXT, proof_stands, prove, standing_engine
from build_scripts.safetensors_file import SafetensorsFile
from build_scripts.source import SourceFile, resolve
from build_scripts.stages import Finished, Inputs, Stages
from engines.manifest import SCHEMA_VERSION, EngineManifest, Source
from engines.openvino.fitness import openvino_version
from engines.openvino.host import usable_cores

RECIPE_NAME = "export"
RECIPE = f"{RECIPE_NAME}-1"
"""Stands in the manifest where our own graph's recipe would."""
FORMS = ("f32", "f16")
_OVERHEAD = 1_500_000_000
"""What torch, transformers and the tracer hold beside the weights."""
_PROBE_TOKENS = 256
_LONGEST_PROBE = 1024
"""A window up to nearly this many tokens is crossed by the probe."""


@dataclass(frozen=True)
class ExportRequest:
    model: str
    output: Path | None
    wish: NumericsWish
    cache: Path


@dataclass(frozen=True)
class ExportPlan:
    """All that is known before the exporter runs."""

    source: SourceFile
    config: dict[str, Any] = field(repr=False)
    words: HfTokenizer = field(repr=False)
    stored: dict[str, SafetensorsFile] = field(repr=False)
    choice: NumericsChoice
    environment: Environment
    output: Path

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.source.sha256, self.choice, self.recipe)

    @property
    def recipe(self) -> str:
        """The exporter's versions decide the graph as much as our own code."""
        versions = self.environment.versions
        return f"{RECIPE}, optimum-intel {versions['optimum-intel']}, transformers {versions['transformers']}"

    @property
    def weight_bytes(self) -> int:
        """Of the result."""
        values = sum(math.prod(file.entries[name].shape) for name, file in self.stored.items())
        return values * (2 if self.choice.weights == "f16" else 4)

    @property
    def build_memory(self) -> int:
        """An estimate: the model and its graph, both in float32, side by side."""
        values = sum(math.prod(file.entries[name].shape) for name, file in self.stored.items())
        return 8 * values + _OVERHEAD

    def prompts(self) -> list[list[int]]:
        """What is compared: a text, and random tokens that go on past the window of attention."""
        context = max_context(self.config)
        window = self.config.get("sliding_window") or 0
        length = min(context, max(_PROBE_TOKENS, min(window + 64, _LONGEST_PROBE)))
        draw = random.Random(0)  # noqa: S311 - a test input, not a secret
        rows = vocabulary(self.config)
        return [self.words.tokenizer.encode(PROBE_TEXT).ids[:length], [draw.randrange(rows) for _ in range(length)]]

    def stage_inputs(self) -> dict[str, Inputs]:
        graph = {"source": self.source.sha256, "weights": self.choice.weights, "recipe": self.recipe}
        graph |= {name: self.environment.versions[name] for name in ("torch", "openvino")}
        tokenizer = {"source": self.source.sha256, "tokenizers": metadata.version("tokenizers")}
        numerics = {"kv_cache": self.choice.kv_cache, "activations": self.choice.activations}
        here = {"openvino": openvino_version(), "machine": machine(usable_cores())}
        return {"graph": graph, "tokenizer": tokenizer, "proof": graph | numerics | here}

    def up_to_date(self) -> bool:
        return is_intact(self.output, self.fingerprint)


def make_plan(request: ExportRequest, reporter: Reporter) -> ExportPlan:
    """Refuse what cannot be exported, before the exporter is started. Raises BuildError."""
    weights = request.wish.weights or "f32"
    if weights not in FORMS:
        raise UnsupportedError(f"--weights {weights} is not implemented for --export, which has {', '.join(FORMS)}")
    source = resolve(request.model, cache=request.cache, progress=reporter.note)
    if not source.path.is_dir():
        raise UnsupportedError(f"--export takes a Hugging Face directory or a hub name, {source.path.name} is a file")
    config = read_json(source.path / "config.json")
    check_config(config)
    refuse_quantised(config)
    return ExportPlan(
        source=source,
        config=config,
        words=HfTokenizer(source.path, config, vocabulary(config)),
        stored=open_shards(source.path),
        choice=request.wish.settled(weights),
        environment=find_environment(request.cache),
        output=request.output or Path("engine-cache") / f"{source.name}-export-{weights}",
    )


def build(plan: ExportPlan, reporter: Reporter, *, force: bool = False) -> EngineManifest:
    """Export, verify and publish. Raises BuildError; then the output is what it was."""
    if not force:
        require_room(memory=plan.build_memory, disk=plan.weight_bytes, output=plan.output)
    standing = None if force else standing_engine(plan.output)
    with publish.staging(plan.output, plan.fingerprint) as scratch:
        stages = Stages(scratch, Finished(plan.output, standing.stages) if standing else None, reporter.note)
        inputs = plan.stage_inputs()
        stages.run("graph", inputs["graph"], lambda: _export(plan, scratch, reporter))
        stages.run("tokenizer", inputs["tokenizer"], lambda: _write_tokenizer(plan, scratch))
        manifest = provisional_manifest(plan, scratch)
        if standing is not None and proof_stands(standing.stages, inputs["proof"]):
            reporter.note("proof: up to date")
            manifest = msgspec.structs.replace(manifest, numerics=standing.numerics, profile=standing.profile)
        else:
            manifest = prove(scratch, manifest, _golden(plan, scratch), plan.choice, reporter)
        stages.run("proof", inputs["proof"], tuple)
        stages.clear_markers()
        reporter.note(f"publishing {plan.output}")
        manifest = msgspec.structs.replace(manifest, stages=tuple(stages.records))
        publish.publish(scratch, plan.output, manifest)
    return manifest


def _export(plan: ExportPlan, scratch: Path, reporter: Reporter) -> list[str]:
    reporter.note(f"exporting with optimum-intel {plan.environment.versions['optimum-intel']}: minutes, silent")
    order = {
        "source": str(plan.source.path.resolve()),
        "output": str(scratch.resolve()),
        "weights": plan.choice.weights,
        "prompts": plan.prompts(),
    }
    plan.environment.export(order, scratch)
    return ["model.bin", "model.xml", REFERENCE_NAME]


def _write_tokenizer(plan: ExportPlan, scratch: Path) -> list[str]:
    plan.words.tokenizer.save(str(scratch / "tokenizer.json"))
    return ["tokenizer.json"]


def _golden(plan: ExportPlan, scratch: Path) -> Golden:
    made_with = {name: plan.environment.versions[name] for name in ("transformers", "torch")}
    return Golden(plan.source.sha256, made_with, read_reference(scratch).sequences)


def provisional_manifest(plan: ExportPlan, scratch: Path) -> EngineManifest:
    """What the runner needs to load the engine. Raises UnsupportedError for a graph that it cannot serve."""
    formats = sorted({file.entries[name].dtype for name, file in plan.stored.items()})
    return EngineManifest(
        schema_version=SCHEMA_VERSION,
        engine="openvino",
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        fingerprint=plan.fingerprint,
        recipe=plan.recipe,
        model=describe_graph(scratch, plan.config, read_reference(scratch).parameters),
        source=Source(
            name=plan.source.name,
            kind="huggingface",
            origin=plan.source.origin,
            sha256=plan.source.sha256,
            quantisation=", ".join(formats),
            licence=plan.source.licence or card_licence(plan.source.path) or "not stated",
        ),
        numerics=hoped_numerics(plan.choice),
        profile=UNMEASURED,
        tokenizer=plan.words.info,
        tools=plan.environment.versions | tool_versions(),
        files=publish.list_files(scratch),
    )
