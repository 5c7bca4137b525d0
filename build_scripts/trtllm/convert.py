"""Rank files out of a checkpoint, a tensor at a time: what is held in memory is one tensor and one shard's share of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from build_scripts.casting import FloatType
from build_scripts.decoder import Decoder, Shape
from build_scripts.safetensors_file import STORED, SafetensorsWriter
from build_scripts.trtllm.config import Quantisation, check_expressible, config_json, form_of
from build_scripts.trtllm.layout import Layout, check_layout
from build_scripts.trtllm.recipe import Output, Recipe, check_cuts, joined
from build_scripts.trtllm.targets import Form, stage_targets

Progress = Callable[[str], None]
"""Called with the name of each tensor that was written."""


@dataclass(frozen=True)
class Conversion:
    """A conversion that was found possible."""

    decoder: Decoder
    layout: Layout
    dtype: FloatType
    form: Form
    quantisation: Quantisation

    def outputs(self, recipe: Recipe, stage: int) -> Iterator[Output]:
        for target in stage_targets(self.decoder, self.layout, self.form, stage):
            yield from recipe.outputs(target)

    def declared(self, recipe: Recipe, stage: int) -> dict[str, tuple[str, Shape]]:
        """Stored type and shape of every tensor of a stage's rank files; all shards of a stage are alike."""
        return {
            output.name: (output.stored, output.shard_shape(self.decoder, self.layout))
            for output in self.outputs(recipe, stage)
        }

    def rank_bytes(self, recipe: Recipe, stage: int) -> int:
        """Tensor bytes of one rank file of a stage."""
        return sum(
            int(np.prod(shape, dtype=np.int64)) * STORED[stored].itemsize
            for stored, shape in self.declared(recipe, stage).values()
        )

    def config(self) -> str:
        """config.json, the same text for the same conversion."""
        values = config_json(self.decoder, self.layout, self.form, self.dtype, self.quantisation)
        return json.dumps(values, indent=2, sort_keys=True) + "\n"


def plan_conversion(
    decoder: Decoder,
    layout: Layout,
    dtype: FloatType,
    *,
    quantisation: Quantisation | None = None,
    share_embedding: bool = False,
) -> Conversion:
    """Raises UnsupportedError, before anything is read, where model and layout do not fit TensorRT-LLM."""
    check_layout(decoder, layout)
    check_expressible(decoder, layout)
    form = form_of(decoder, layout, share_embedding=share_embedding)
    conversion = Conversion(decoder, layout, dtype, form, quantisation or Quantisation())
    conversion.config()
    return conversion


def check_recipe(conversion: Conversion, recipe: Recipe) -> None:
    """Raises UnsupportedError where a quantised checkpoint cannot be cut so."""
    for stage in range(conversion.layout.pp):
        for output in conversion.outputs(recipe, stage):
            check_cuts(output, conversion.layout)


def write_checkpoint(conversion: Conversion, recipe: Recipe, directory: Path, progress: Progress) -> None:
    """config.json and rank{r}.safetensors into a directory. The same input gives the same bytes."""
    check_recipe(conversion, recipe)
    for stage in range(conversion.layout.pp):
        write_stage(conversion, recipe, directory, stage, progress)
    (directory / "config.json").write_text(conversion.config(), encoding="utf-8")


def write_stage(conversion: Conversion, recipe: Recipe, directory: Path, stage: int, progress: Progress) -> None:
    """The rank files of one pipeline stage, side by side: each tensor of the checkpoint is read once for all shards."""
    decoder, layout, declared = conversion.decoder, conversion.layout, conversion.declared(recipe, stage)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(SafetensorsWriter(path, declared))
            for path in rank_paths(conversion.layout, directory, stage)
        ]
        for output in conversion.outputs(recipe, stage):
            parts = [recipe.read(output, piece) for piece in output.pieces]
            for shard, writer in enumerate(writers):
                writer.write(output.name, joined(output, parts, decoder, layout, shard))
            progress(output.name)


def rank_paths(layout: Layout, directory: Path, stage: int) -> list[Path]:
    return [directory / f"rank{layout.rank(stage, shard)}.safetensors" for shard in range(layout.tp)]
