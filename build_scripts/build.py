"""The way from a model's name to an engine in its place."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

import msgspec
import openvino as ov

from build_scripts import graph, publish
from build_scripts.bill import Bill, draw_up
from build_scripts.checkpoint import Checkpoint, default_weights, open_checkpoint
from build_scripts.decoder import Decoder
from build_scripts.description import provisional_manifest
from build_scripts.errors import PublishError
from build_scripts.golden.reference import Golden, find_golden, own_golden
from build_scripts.host import give_back_freed_memory, require_room
from build_scripts.inspection import is_intact
from build_scripts.numerics import NumericsChoice, NumericsWish, fingerprint
from build_scripts.profile import machine
from build_scripts.progress import Reporter
from build_scripts.proof import PROBE_TEXT, proof_stands, prove, standing_engine
from build_scripts.source import SourceFile, resolve
from build_scripts.stages import Finished, Inputs, Stages
from build_scripts.weight_forms import FormedSource, check_form
from build_scripts.weights import TensorSource
from build_scripts.wide_form import WideSource, settle_wide
from engines.manifest import EngineManifest
from engines.openvino.fitness import openvino_version
from engines.openvino.host import usable_cores


@dataclass(frozen=True)
class BuildRequest:
    model: str
    output: Path | None
    """None = a directory below engine-cache/, named by model and weights."""
    choice: NumericsChoice | NumericsWish
    """A wish is completed by what the kind of checkpoint makes the default."""
    cache: Path
    force: bool = False
    """Build although the same engine is there, and although memory or disk look too small."""

    def choice_for(self, checkpoint: Checkpoint) -> NumericsChoice:
        """Raises UnsupportedError for a form that this kind of checkpoint cannot take."""
        weights = self.choice.weights or default_weights(checkpoint)
        check_form(weights, checkpoint.kind, checkpoint.tensors.formats())
        if isinstance(self.choice, NumericsChoice):
            return self.choice
        settled = self.choice.settled(weights)
        wide = settle_wide(self.choice, settled, checkpoint.decoder, checkpoint.tensors.formats())
        return replace(settled, wide_weights=wide)


@dataclass(frozen=True)
class Plan:
    """All that is known before work starts."""

    source: SourceFile
    checkpoint: Checkpoint = field(repr=False)
    choice: NumericsChoice
    bill: Bill
    output: Path
    fingerprint: str

    @property
    def decoder(self) -> Decoder:
        return self.checkpoint.decoder

    def stage_inputs(self) -> dict[str, Inputs]:
        """What decides each stage, in order."""
        openvino, choice = openvino_version(), self.choice
        graph_inputs = {
            "source": self.source.sha256,
            "weights": choice.weights,
            "recipe": graph.RECIPE,
            "openvino": openvino,
        }
        tokenizer_inputs = {"source": self.source.sha256, "tokenizers": metadata.version("tokenizers")}
        proof_inputs = graph_inputs | {
            "kv_cache": choice.kv_cache,
            "activations": choice.activations,
            "machine": machine(usable_cores()),
        }
        if choice.wide_weights is None:
            return {"graph": graph_inputs, "tokenizer": tokenizer_inputs, "proof": proof_inputs}
        wide = {"wide_weights": choice.wide_weights}
        return {
            "graph": graph_inputs,
            "wide graph": graph_inputs | wide,
            "tokenizer": tokenizer_inputs,
            "proof": proof_inputs | wide,
        }

    def up_to_date(self) -> bool:
        """Whether exactly this engine stands at the output, every byte of it."""
        return is_intact(self.output, self.fingerprint)


def make_plan(request: BuildRequest, reporter: Reporter) -> Plan:
    """Fetch and read the checkpoint, refuse what cannot be built, draw up the bill. Raises BuildError."""
    source = resolve(request.model, cache=request.cache, progress=reporter.note)
    reporter.note(f"reading {source.path.name}")
    checkpoint = open_checkpoint(source.path)
    graph.check_embeddable(checkpoint.decoder)
    choice = request.choice_for(checkpoint)
    return Plan(
        source=source,
        checkpoint=checkpoint,
        choice=choice,
        bill=draw_up(checkpoint.decoder, checkpoint.tensors.formats(), choice, checkpoint.kind),
        output=request.output or Path("engine-cache") / f"{source.name}-{choice.weights}",
        fingerprint=fingerprint(source.sha256, choice, graph.RECIPE),
    )


def build(plan: Plan, reporter: Reporter, *, force: bool = False) -> EngineManifest:
    """Build, verify and publish. Raises BuildError; then the output is what it was."""
    if not force:
        require_room(memory=plan.bill.build_memory, disk=plan.bill.disk, output=plan.output)
    standing = None if force else standing_engine(plan.output)
    with publish.staging(plan.output, plan.fingerprint) as scratch:
        finished = None if standing is None else Finished(plan.output, standing.stages)
        stages = Stages(scratch, finished, reporter.note)
        inputs = plan.stage_inputs()
        stages.run("graph", inputs["graph"], lambda: write_graph(plan, scratch, reporter))
        if plan.choice.wide_weights is not None:
            stages.run("wide graph", inputs["wide graph"], lambda: write_wide_graph(plan, scratch, reporter))
        stages.run("tokenizer", inputs["tokenizer"], lambda: _write_tokenizer(plan, scratch))
        manifest = provisional_manifest(plan, scratch)
        if standing is not None and proof_stands(standing.stages, inputs["proof"]):
            reporter.note("proof: up to date")
            manifest = msgspec.structs.replace(manifest, numerics=standing.numerics, profile=standing.profile)
        else:
            golden = find_golden(plan.source.sha256) or _own_golden(plan, reporter)
            give_back_freed_memory()  # what the reference leaves would stand beside the loaded engine
            manifest = prove(scratch, manifest, golden, plan.choice, reporter)
        stages.run("proof", inputs["proof"], tuple)
        stages.clear_markers()
        reporter.note(f"publishing {plan.output}")
        manifest = msgspec.structs.replace(manifest, stages=tuple(stages.records))
        publish.publish(scratch, plan.output, manifest)
    return manifest


def _write_tokenizer(plan: Plan, scratch: Path) -> list[str]:
    plan.checkpoint.tokenizer.save(str(scratch / "tokenizer.json"))
    return ["tokenizer.json"]


def write_graph(plan: Plan, scratch: Path, reporter: Reporter) -> list[str]:
    """model.xml and model.bin; holds the result, and a tensor of the checkpoint. Returns their names."""
    formed = FormedSource(plan.checkpoint.tensors, plan.choice.weights)
    return _write_graph(plan, formed, scratch / "model.xml", reporter)


def write_wide_graph(plan: Plan, scratch: Path, reporter: Reporter) -> list[str]:
    """wide.xml and wide.bin: the numbers of model.bin, so that both forms are one model. Memory as for write_graph."""
    formed = FormedSource(plan.checkpoint.tensors, plan.choice.weights)
    return _write_graph(plan, WideSource(formed), scratch / "wide.xml", reporter)


def _write_graph(plan: Plan, weights: TensorSource, path: Path, reporter: Reporter) -> list[str]:
    with reporter.stage(f"reading weights for {path.stem}.bin", len(plan.decoder.tensors())) as advance:
        model = graph.build_graph(plan.decoder, weights, dequantise=False, progress=lambda _: advance(1))
    reporter.note(f"writing {path.name}")
    try:
        ov.save_model(model, str(path), compress_to_fp16=False)
    except RuntimeError as error:
        raise PublishError(f"{plan.output.parent}: the graph cannot be written (is the disk full?)") from error
    _require_whole(path)
    del model
    give_back_freed_memory()
    return [f"{path.stem}.bin", path.name]


def _require_whole(path: Path) -> None:
    """The library does not tell when a write fell short: hold the weights' file against what the graph refers to."""
    document, weights = path.read_text(), path.with_suffix(".bin")
    ends = [int(offset) + int(size) for offset, size in re.findall(r'offset="(\d+)" size="(\d+)"', document)]
    if not document.rstrip().endswith("</net>") or weights.stat().st_size < max(ends):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), weights.name)


def _own_golden(plan: Plan, reporter: Reporter) -> Golden:
    reporter.note("no golden data is committed for this file: computing a reference with NumPy")
    ids = plan.checkpoint.tokenizer.encode(PROBE_TEXT).ids
    return own_golden(plan.decoder, plan.checkpoint.tensors, plan.source.sha256, ids)
