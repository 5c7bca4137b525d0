"""The way from a model's name to a TensorRT-LLM checkpoint in its place: plan, convert stage by stage, publish."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from build_scripts import publish
from build_scripts.casting import FloatType
from build_scripts.description import tool_versions
from build_scripts.errors import CheckpointError
from build_scripts.host import require_room
from build_scripts.progress import Reporter
from build_scripts.source import SourceFile, resolve
from build_scripts.stages import Finished, Inputs, Stages, files_stand, stage_key
from build_scripts.trtllm.bill import ClusterBill, draw_up
from build_scripts.trtllm.config import attention_windows
from build_scripts.trtllm.convert import Conversion, check_recipe, plan_conversion, rank_paths, write_stage
from build_scripts.trtllm.layout import Layout
from build_scripts.trtllm.record import RECIPE, RECORD_NAME, RECORD_SCHEMA, CheckpointRecord, read_record
from build_scripts.trtllm.source import CheckpointSource, open_source
from engines.manifest import Source


@dataclass(frozen=True)
class CheckpointRequest:
    model: str
    output: Path | None
    """None = a directory below engine-cache/, named by model, type and layout."""
    layout: Layout
    dtype: FloatType | None
    """None = the checkpoint's own."""
    weights: str | None
    """None = floats, or what ModelOpt left; "int8" and "int4" = weight-only."""
    share_embedding: bool
    cache: Path


@dataclass(frozen=True)
class CheckpointPlan:
    """All that is known before work starts."""

    request: CheckpointRequest
    source: SourceFile
    opened: CheckpointSource = field(repr=False)
    conversion: Conversion
    bill: ClusterBill
    output: Path

    @property
    def layout(self) -> Layout:
        return self.request.layout

    def stage_inputs(self) -> list[tuple[str, Inputs]]:
        """What decides the rank files of each pipeline stage."""
        shared = {
            "source": self.source.sha256,
            "recipe": RECIPE,
            "tp": str(self.layout.tp),
            "pp": str(self.layout.pp),
            "dtype": self.conversion.dtype,
            "quantisation": self.conversion.quantisation.quant_algo or "none",
            "share_embedding": str(self.request.share_embedding).lower(),
        }
        return [(f"rank files of stage {stage}", shared | {"stage": str(stage)}) for stage in range(self.layout.pp)]

    @property
    def fingerprint(self) -> str:
        return stage_key("checkpoint", dict(self.stage_inputs()[0][1]))

    def up_to_date(self) -> bool:
        """Whether exactly this checkpoint stands at the output, every byte of it."""
        try:
            record = read_record(self.output)
        except CheckpointError:
            return False
        return record.fingerprint == self.fingerprint and files_stand(self.output, record.files)


def make_plan(request: CheckpointRequest, reporter: Reporter) -> CheckpointPlan:
    """Fetch and read headers, refuse what cannot be built, draw up the bill. Raises BuildError."""
    source = resolve(request.model, cache=request.cache, progress=reporter.note)
    reporter.note(f"reading {source.path.name}")
    opened = open_source(source.path, request.dtype, request.weights)
    conversion = plan_conversion(
        opened.decoder,
        request.layout,
        opened.dtype,
        quantisation=opened.quantisation,
        share_embedding=request.share_embedding,
    )
    check_recipe(conversion, opened.recipe)
    name = f"{source.name}-trtllm-{request.weights or opened.dtype}-tp{request.layout.tp}-pp{request.layout.pp}"
    return CheckpointPlan(
        request=request,
        source=source,
        opened=opened,
        conversion=conversion,
        bill=draw_up(conversion, opened.recipe),
        output=request.output or Path("engine-cache") / name,
    )


def build(plan: CheckpointPlan, reporter: Reporter, *, force: bool = False) -> CheckpointRecord:
    """Convert and publish. Raises BuildError; then the output is what it was."""
    if not force:
        require_room(memory=plan.bill.build_memory, disk=plan.bill.disk, output=plan.output)
    standing = None if force else _standing(plan.output)
    with publish.staging(plan.output, plan.fingerprint, RECORD_NAME) as scratch:
        finished = None if standing is None else Finished(plan.output, standing.stages)
        stages = Stages(scratch, finished, reporter.note)
        for stage, (name, inputs) in enumerate(plan.stage_inputs()):
            stages.run(name, inputs, lambda stage=stage: _convert(plan, scratch, stage, reporter))  # type: ignore[misc]
        (scratch / "config.json").write_text(plan.conversion.config(), encoding="utf-8")
        stages.clear_markers()
        record = _record(plan, scratch, stages)
        reporter.note(f"publishing {plan.output}")
        publish.publish(scratch, plan.output, record, RECORD_NAME)
    return record


def next_command(plan: CheckpointPlan) -> str:
    """Stage two, on a machine with the GPUs: windows and limits are told there."""
    return f"trtllm-build --checkpoint_dir {plan.output} --output_dir {plan.output}-engine --workers {plan.layout.world_size}"


def _convert(plan: CheckpointPlan, scratch: Path, stage: int, reporter: Reporter) -> list[str]:
    outputs = sum(1 for _ in plan.conversion.outputs(plan.opened.recipe, stage))
    with reporter.stage(f"stage {stage + 1} of {plan.layout.pp}", outputs) as advance:
        write_stage(plan.conversion, plan.opened.recipe, scratch, stage, lambda _: advance(1))
    return [path.name for path in rank_paths(plan.layout, scratch, stage)]


def _standing(output: Path) -> CheckpointRecord | None:
    try:
        return read_record(output)
    except CheckpointError:
        return None


def _record(plan: CheckpointPlan, scratch: Path, stages: Stages) -> CheckpointRecord:
    source = plan.source
    return CheckpointRecord(
        schema_version=RECORD_SCHEMA,
        fingerprint=plan.fingerprint,
        source=Source(
            name=source.name,
            kind="huggingface" if source.path.is_dir() else "gguf",
            origin=source.origin,
            sha256=source.sha256,
            quantisation=plan.opened.summary,
            licence=source.licence or "not stated",
        ),
        tp=plan.layout.tp,
        pp=plan.layout.pp,
        dtype=plan.conversion.dtype,
        weights=plan.request.weights,
        share_embedding=plan.request.share_embedding,
        max_attention_window=tuple(attention_windows(plan.conversion.decoder)),
        tools={name: version for name, version in tool_versions().items() if name in ("firsttoken", "numpy", "python")},
        files=publish.list_files(scratch),
        stages=tuple(stages.records),
    )
