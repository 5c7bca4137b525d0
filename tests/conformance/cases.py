"""The step runners that must keep the contract."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

import engines.openvino
from engines.contract import StepRunner
from engines.openvino.loader import read_manifest
from engines.simulated.clock import VirtualClock
from engines.simulated.draws import LogitDrawer
from engines.simulated.language import Language
from engines.simulated.step_runner import SimulatedStepRunner
from tests.conformance.tiny_model import build_tiny_engine

MAX_ROWS = 8
MAX_STEP_TOKENS = 160
BLOCKS = 64
MAX_CONTEXT = 512
BUILT = "FIRSTTOKEN_TEST_ENGINES"
"""Environment variable: directories of built engines that the suite shall hold, too."""


@dataclass(frozen=True)
class RunnerCase:
    """How to make a runner, and what to ask of its numbers."""

    name: str
    make: Callable[[], StepRunner]
    tolerance: float
    """Bound on differences of log-probabilities; 0 = bit for bit."""
    exact: bool
    """Greedy tokens never depend on how they were computed."""

    def __str__(self) -> str:
        return self.name


def _simulated(draws: str) -> StepRunner:
    language = Language(512, end_ids=(2,), end_rate=0.05, seed=11)
    return SimulatedStepRunner(
        language,
        blocks=BLOCKS,
        block_size=32,
        max_rows=MAX_ROWS,
        max_step_tokens=MAX_STEP_TOKENS,
        max_context=MAX_CONTEXT,
        clock=VirtualClock(),
        drawer=LogitDrawer(language) if draws == "logits" else None,
        paranoid=True,
        poison=True,
    )


@functools.cache
def _tiny_directory() -> tempfile.TemporaryDirectory[str]:
    directory = tempfile.TemporaryDirectory(prefix="tiny-engine-")
    build_tiny_engine(Path(directory.name))
    return directory


def _openvino(kv_cache: str, activations: str) -> StepRunner:
    directory = Path(_tiny_directory().name)
    manifest = read_manifest(directory)
    numerics = msgspec.structs.replace(manifest.numerics, kv_cache=kv_cache, activations=activations)
    return engines.openvino.load(
        directory,
        kv_blocks=BLOCKS,
        threads=1,
        max_rows=MAX_ROWS,
        max_step_tokens=MAX_STEP_TOKENS,
        manifest=msgspec.structs.replace(manifest, numerics=numerics),
    )


def _has_bf16() -> bool:
    import openvino as ov

    return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _built(directory: Path) -> RunnerCase:
    """An engine of yours, held to what its manifest promises."""
    manifest = read_manifest(directory)
    short = msgspec.structs.replace(manifest, model=msgspec.structs.replace(manifest.model, max_context=MAX_CONTEXT))
    make = functools.partial(
        engines.openvino.load,
        directory,
        kv_blocks=BLOCKS,
        max_rows=MAX_ROWS,
        max_step_tokens=MAX_STEP_TOKENS,
        manifest=short,
    )
    numerics = manifest.numerics
    name = f"{manifest.source.name}-{numerics.weights}-{numerics.kv_cache}"
    return RunnerCase(name, make, tolerance=numerics.tolerance, exact=numerics.batch_invariant)


def runner_cases() -> list[RunnerCase]:
    cases = [
        RunnerCase("simulated-tokens", functools.partial(_simulated, "tokens"), tolerance=0.0, exact=True),
        RunnerCase("simulated-logits", functools.partial(_simulated, "logits"), tolerance=0.0, exact=True),
        RunnerCase("openvino-f32", functools.partial(_openvino, "f32", "f32"), tolerance=2e-4, exact=True),
        RunnerCase("openvino-f16", functools.partial(_openvino, "f16", "f32"), tolerance=1e-2, exact=False),
        RunnerCase("openvino-u8", functools.partial(_openvino, "u8", "f32"), tolerance=1.2, exact=False),
    ]
    if _has_bf16():
        cases.append(
            RunnerCase("openvino-bf16", functools.partial(_openvino, "bf16", "bf16"), tolerance=0.5, exact=False)
        )
    return cases + [_built(Path(directory)) for directory in os.environ.get(BUILT, "").split(os.pathsep) if directory]
