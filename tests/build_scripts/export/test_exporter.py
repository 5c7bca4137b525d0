"""The real exporter, where its environment is: families that are not described here come out as transformers computes them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_scripts.errors import BuildError
from build_scripts.export.build import ExportRequest, build, make_plan
from build_scripts.export.environment import find_environment
from build_scripts.inspection import inspect_engine
from build_scripts.numerics import NumericsWish
from build_scripts.source import default_cache
from engines.manifest import EngineManifest
from tests.build_scripts.small_models import write_byte_tokenizer
from tests.engines_built import SilentReporter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MAKER = Path(__file__).with_name("make_models.py")


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    try:
        yield find_environment(default_cache()).python
    except BuildError as error:
        pytest.skip(str(error))


def made(python: Path, directory: Path, name: str) -> Path:
    subprocess.run([str(python), "-I", str(MAKER), str(directory), name], check=True, capture_output=True)
    write_byte_tokenizer(directory / name)
    return directory / name


def exported(model: Path, output: Path, wish: NumericsWish) -> EngineManifest:
    plan = make_plan(ExportRequest(str(model), output, wish, default_cache()), SilentReporter())
    return build(plan, SilentReporter())


@pytest.mark.parametrize("name", ["gpt2", "opt", "bloom", "gpt_neox", "mistral", "phi3", "qwen2_moe"])
def test_the_engine_computes_what_transformers_computes(python: Path, tmp_path: Path, name: str) -> None:
    """mistral has a window of 64 tokens and 256 are compared; bloom has alibi instead of positions."""
    manifest = exported(made(python, tmp_path, name), tmp_path / "engine", NumericsWish())
    assert manifest.model.family == name
    assert manifest.numerics.golden_reference.startswith("transformers")
    assert manifest.numerics.golden_positions > 400
    assert manifest.numerics.golden_argmax_agreement == 1.0
    assert manifest.numerics.golden_max_difference <= 1e-5
    assert inspect_engine(tmp_path / "engine").servable


def test_half_floats_take_half_the_bytes(python: Path, tmp_path: Path) -> None:
    model = made(python, tmp_path, "gpt2")
    sizes = {}
    for weights, wish in (("f32", NumericsWish()), ("f16", NumericsWish(weights="f16", activations="f32"))):
        exported(model, tmp_path / weights, wish)
        sizes[weights] = (tmp_path / weights / "model.bin").stat().st_size
    assert sizes["f16"] < 0.55 * sizes["f32"]


def test_a_model_without_attention_is_refused(python: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"names no longest sequence|states of"):
        exported(made(python, tmp_path, "mamba"), tmp_path / "engine", NumericsWish())
    assert not (tmp_path / "engine").exists()
