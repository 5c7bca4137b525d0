"""Loading the conformance suite's tiny engine, and plans for it."""

from __future__ import annotations

import functools
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from engines.contract import Row, Sample, SequenceSpec, StepPlan, StepResult, Want
from engines.manifest import EngineManifest, Numerics
from engines.openvino import load
from engines.openvino.loader import read_manifest
from engines.openvino.runner import OpenVinoStepRunner
from engines.sampling.params import SamplingParams
from tests.conformance.tiny_model import build_tiny_engine

BLOCKS = 24
ONE = Sample()


@functools.cache
def _holder() -> tempfile.TemporaryDirectory[str]:
    holder = tempfile.TemporaryDirectory(prefix="tiny-engine-")
    build_tiny_engine(Path(holder.name))
    return holder


def directory() -> Path:
    """One engine for all tests; nobody may write to it."""
    return Path(_holder().name)


def with_numerics(**changes: object) -> EngineManifest:
    manifest = read_manifest(directory())
    numerics: Numerics = msgspec.structs.replace(manifest.numerics, **changes)
    return msgspec.structs.replace(manifest, numerics=numerics)


def tiny_runner(manifest: EngineManifest | None = None) -> OpenVinoStepRunner:
    return load(directory(), kv_blocks=BLOCKS, threads=1, max_rows=8, max_step_tokens=160, manifest=manifest)


def spec(sequence: int, sampling: SamplingParams | None = None) -> SequenceSpec:
    return SequenceSpec(sequence, 0, sampling or SamplingParams(), array("i", [1]))


def tokens(count: int, seed: int = 0) -> array[int]:
    return array("i", np.random.default_rng(seed).integers(0, 512, count).tolist())


def row(sequence: int, new: Sequence[int] | None, past: int, blocks: Sequence[int], want: Want = ONE) -> Row:
    return Row(sequence, None if new is None else array("i", new), past, (array("i", blocks),), want)


class Steps:
    """Numbers the steps."""

    def __init__(self, runner: OpenVinoStepRunner) -> None:
        self.runner = runner
        self.step = 0

    def plan(self, *rows: Row, opened: Sequence[SequenceSpec] = (), closed: Sequence[int] = ()) -> StepPlan:
        self.step += 1
        return StepPlan(self.step, list(rows), opened=opened, closed=closed)

    def run(self, *rows: Row, opened: Sequence[SequenceSpec] = (), closed: Sequence[int] = ()) -> StepResult:
        return self.runner.start(self.plan(*rows, opened=opened, closed=closed)).result()
