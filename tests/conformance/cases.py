"""The step runners that must keep the contract."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from _pytest.mark import ParameterSet

import engines.openvino
from engines.contract import StepRunner
from engines.openvino.loader import read_manifest
from engines.simulated.clock import VirtualClock
from engines.simulated.draws import LogitDrawer
from engines.simulated.language import Language
from engines.simulated.step_runner import SimulatedStepRunner
from tests.conformance.tiny_model import add_wide_form, build_tiny_engine
from tests.engines_built import default_engine, f32_engine

MAX_ROWS = 8
MAX_STEP_TOKENS = 160
BLOCKS = 64
MAX_CONTEXT = 512
BUILT = "FIRSTTOKEN_TEST_ENGINES"
"""Environment variable: directories of built engines that the suite shall hold, too."""


@dataclass(frozen=True)
class RunnerCase:
    """How to make a runner, and what to ask of its numbers."""

    make: Callable[[], StepRunner]
    tolerance: float
    """Bound on differences of log-probabilities; 0 = bit for bit."""
    exact: bool
    """Greedy tokens never depend on how they were computed."""


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
    add_wide_form(Path(directory.name))
    return directory


def _openvino(kv_cache: str, activations: str, wide_weights: str = "") -> StepRunner:
    directory = Path(_tiny_directory().name)
    manifest = read_manifest(directory)
    numerics = msgspec.structs.replace(
        manifest.numerics, kv_cache=kv_cache, activations=activations, wide_weights=wide_weights
    )
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
    """A real engine, held to what its manifest promises."""
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
    return RunnerCase(make, tolerance=manifest.numerics.tolerance, exact=manifest.numerics.batch_invariant)


def runner_cases() -> list[ParameterSet]:
    """Each gives a function that makes a RunnerCase: nothing is built or loaded before a test wants it."""
    cases: dict[str, RunnerCase] = {
        "simulated-tokens": RunnerCase(functools.partial(_simulated, "tokens"), tolerance=0.0, exact=True),
        "simulated-logits": RunnerCase(functools.partial(_simulated, "logits"), tolerance=0.0, exact=True),
        "openvino-f32": RunnerCase(functools.partial(_openvino, "f32", "f32"), tolerance=2e-4, exact=True),
        "openvino-f32-two-forms": RunnerCase(
            functools.partial(_openvino, "f32", "f32", "bf16"), tolerance=2e-4, exact=True
        ),
        "openvino-f16": RunnerCase(functools.partial(_openvino, "f16", "f32"), tolerance=1e-2, exact=False),
        "openvino-u8": RunnerCase(functools.partial(_openvino, "u8", "f32"), tolerance=1.2, exact=False),
    }
    if _has_bf16():
        cases["openvino-bf16"] = RunnerCase(functools.partial(_openvino, "bf16", "bf16"), tolerance=0.5, exact=False)
    built = map(Path, filter(None, os.environ.get(BUILT, "").split(os.pathsep)))
    return [
        *(pytest.param(functools.partial(_same, case), id=name) for name, case in cases.items()),
        pytest.param(functools.partial(_after, f32_engine), id="real-f32", marks=pytest.mark.slow),
        pytest.param(functools.partial(_after, default_engine), id="real-default", marks=pytest.mark.slow),
        *(pytest.param(functools.partial(_built, directory), id=directory.name) for directory in built),
    ]


def _same(case: RunnerCase) -> RunnerCase:
    return case


def _after(build: Callable[[], Path]) -> RunnerCase:
    return _built(build())
