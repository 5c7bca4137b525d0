"""Rank files out of a checkpoint, a tensor at a time: what is held in memory is one tensor and one shard's share of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from build_scripts.casting import STORED_AS, FloatType, cast
from build_scripts.decoder import Decoder, Shape
from build_scripts.safetensors_file import SafetensorsWriter
from build_scripts.trtllm.config import Quantisation, check_expressible, config_json, form_of
from build_scripts.trtllm.layout import Layout, check_layout
from build_scripts.trtllm.targets import Form, Target, cut, cut_shape, stage_targets
from build_scripts.weights import Dense

Progress = Callable[[str], None]


class DenseSource(Protocol):
    """A checkpoint of plain floats."""

    def read(self, name: str) -> Dense: ...


@dataclass(frozen=True)
class Conversion:
    """A conversion that was found possible."""

    decoder: Decoder
    layout: Layout
    dtype: FloatType
    form: Form
    quantisation: Quantisation

    def declared(self, stage: int) -> dict[str, tuple[str, Shape]]:
        """Stored type and shape of every tensor of a stage's rank files; all shards of a stage are alike."""
        shapes = self.decoder.tensors()
        stored = STORED_AS[self.dtype]
        return {
            target.name: (stored, self._shape(target, shapes))
            for target in stage_targets(self.decoder, self.layout, self.form, stage)
        }

    def _shape(self, target: Target, shapes: dict[str, Shape]) -> Shape:
        cuts = [cut_shape(shapes[part.source], part.split, self.decoder, self.layout) for part in target.parts]
        return (sum(shape[0] for shape in cuts), *cuts[0][1:])

    def shard_bytes(self, stage: int) -> int:
        size = {"float32": 4, "float16": 2, "bfloat16": 2}[self.dtype]
        return sum(int(np.prod(shape, dtype=np.int64)) * size for _, shape in self.declared(stage).values())


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
    return Conversion(decoder, layout, dtype, form, quantisation or Quantisation())


def write_checkpoint(conversion: Conversion, source: DenseSource, directory: Path, progress: Progress) -> None:
    """config.json and rank{r}.safetensors into an empty directory. The same input gives the same bytes."""
    for stage in range(conversion.layout.pp):
        _write_stage(conversion, source, directory, stage, progress)
    config = config_json(
        conversion.decoder, conversion.layout, conversion.form, conversion.dtype, conversion.quantisation
    )
    (directory / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_stage(conversion: Conversion, source: DenseSource, directory: Path, stage: int, progress: Progress) -> None:
    layout, declared = conversion.layout, conversion.declared(stage)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(SafetensorsWriter(directory / f"rank{layout.rank(stage, shard)}.safetensors", declared))
            for shard in range(layout.tp)
        ]
        for target in stage_targets(conversion.decoder, layout, conversion.form, stage):
            parts = [_whole_part(conversion, source, target, part.source) for part in target.parts]
            for shard, writer in enumerate(writers):
                writer.write(target.name, shard_of(conversion, target, parts, shard))
            progress(target.name)


def _whole_part(conversion: Conversion, source: DenseSource, target: Target, name: str) -> NDArray[Any]:
    return cast(source.read(name), conversion.dtype, name, shift=target.shift)


def shard_of(conversion: Conversion, target: Target, parts: list[NDArray[Any]], shard: int) -> NDArray[Any]:
    cuts = [
        cut(values, part.split, conversion.decoder, conversion.layout, shard)
        for values, part in zip(parts, target.parts, strict=True)
    ]
    return cuts[0] if len(cuts) == 1 else np.concatenate(cuts)
