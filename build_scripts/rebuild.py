"""What was built, asked again: which of its stages are stale and why, and the request that does just those."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_scripts import build as engine_build
from build_scripts.errors import BuildError, SourceError
from build_scripts.export import build as export_build
from build_scripts.numerics import NumericsChoice, NumericsWish
from build_scripts.progress import Reporter
from build_scripts.source import KNOWN_MODELS
from build_scripts.stages import Finished, StageState, explain
from build_scripts.trtllm import build as checkpoint_build
from build_scripts.trtllm.layout import Layout
from build_scripts.trtllm.record import RECORD_NAME, read_record
from engines import manifest_file
from engines.contract import EngineLoadError
from engines.manifest import EngineManifest, Source
from engines.openvino.loader import read_manifest


@dataclass(frozen=True)
class Rebuild:
    """``stages`` in order; ``run`` does what is stale and takes over the rest."""

    output: Path
    stages: list[StageState]
    run: Callable[[Reporter], object]

    @property
    def needed(self) -> bool:
        return any(stage.stale for stage in self.stages)


def plan_rebuild(directory: Path, model: str | None, cache: Path, reporter: Reporter) -> Rebuild:
    """``model``: where the source is now; None = it is known by name, or stands where its name says.

    Raises BuildError where ``directory`` was not built by us, or its source cannot be had.
    """
    if (directory / RECORD_NAME).exists():
        return _checkpoint(directory, model, cache, reporter)
    if _engine_kind(directory) == "trtllm":
        return _compiled(directory, model, cache, reporter)
    return _engine(directory, model, cache, reporter)


def _engine(directory: Path, model: str | None, cache: Path, reporter: Reporter) -> Rebuild:
    try:
        manifest = read_manifest(directory)
    except EngineLoadError as error:
        raise BuildError(str(error)) from error
    numerics: Any = manifest.numerics
    wide = numerics.wide_weights or None
    choice = NumericsChoice(numerics.weights, numerics.kv_cache, numerics.activations, wide)
    if manifest.recipe.startswith(export_build.RECIPE_NAME):
        return _export(directory, manifest, model, cache, reporter)
    request = engine_build.BuildRequest(model or locate(manifest.source), directory, choice, cache)
    plan = engine_build.make_plan(request, reporter)
    stages = explain(Finished(directory, manifest.stages), list(plan.stage_inputs().items()))
    return Rebuild(directory, stages, lambda report: engine_build.build(plan, report))


def _export(directory: Path, manifest: EngineManifest, model: str | None, cache: Path, reporter: Reporter) -> Rebuild:
    numerics: Any = manifest.numerics
    wish = NumericsWish(numerics.weights, numerics.kv_cache, numerics.activations)
    request = export_build.ExportRequest(model or locate(manifest.source), directory, wish, cache)
    plan = export_build.make_plan(request, reporter)
    stages = explain(Finished(directory, manifest.stages), list(plan.stage_inputs().items()))
    return Rebuild(directory, stages, lambda report: export_build.build(plan, report))


def _checkpoint(directory: Path, model: str | None, cache: Path, reporter: Reporter) -> Rebuild:
    plan = _checkpoint_plan(directory, model, cache, reporter)
    stages = explain(Finished(directory, read_record(directory).stages), plan.stage_inputs())
    return Rebuild(directory, stages, lambda report: checkpoint_build.build(plan, report))


def _checkpoint_plan(
    directory: Path, model: str | None, cache: Path, reporter: Reporter
) -> checkpoint_build.CheckpointPlan:
    record = read_record(directory)
    dtype: Any = record.dtype
    request = checkpoint_build.CheckpointRequest(
        model=model or locate(record.source),
        output=directory,
        layout=Layout(record.tp, record.pp),
        dtype=dtype,
        weights=record.weights,
        share_embedding=record.share_embedding,
        cache=cache,
    )
    return checkpoint_build.make_plan(request, reporter)


def _engine_kind(directory: Path) -> str:
    try:
        return manifest_file.read_manifest(directory).engine
    except EngineLoadError as error:
        raise BuildError(str(error)) from error


def _compiled(directory: Path, model: str | None, cache: Path, reporter: Reporter) -> Rebuild:
    """A TensorRT-LLM engine, and the checkpoint beside it that it was compiled from."""
    from build_scripts.trtllm.recompile import Recompile, checkpoint_of

    checkpoint = checkpoint_of(directory)
    if not (checkpoint / RECORD_NAME).exists():
        raise BuildError(
            f"{directory} was compiled from {checkpoint}, which is not here: copy it, or build again with `firsttoken build`"
        )
    plan = _checkpoint_plan(checkpoint, model, cache, reporter)
    below = explain(Finished(checkpoint, read_record(checkpoint).stages), plan.stage_inputs())
    work = Recompile(directory, plan)
    return Rebuild(directory, [*below, *work.stages()], work.run)


def locate(source: Source) -> str:
    """A name that build understands. Raises SourceError where only the user knows: records never hold whole paths."""
    if source.name in KNOWN_MODELS:
        return source.name
    kind, _, rest = source.origin.partition(":")
    if kind == "hub":
        return rest.partition("@")[0]
    raise SourceError(f"it was built from {source.origin}, a path that is not recorded: give it with --model")
