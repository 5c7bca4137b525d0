"""Builds hold a tensor and a result at a time, never the checkpoint (case A6)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from build_scripts.safetensors_file import SafetensorsFile
from tests.build_scripts.small_models import write_small_model

ROOT = Path(__file__).parents[2]
MB = 10**6

SMALL = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 24, "vocab_size": 8192}
LARGE = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32768,
}
"""Two gigabytes of bfloat16."""


class Peak(NamedTuple):
    """Bytes."""

    anonymous: int
    resident: int
    billed: int


def peak(work: str, weights: str, model: Path, output: Path) -> Peak:
    command = [sys.executable, "-m", "tests.build_scripts.measured_memory", work, weights, str(model), str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Peak(*map(int, done.stdout.split()))


def largest_tensor(model: Path) -> int:
    return max(entry.nbytes for path in model.glob("*.safetensors") for entry in SafetensorsFile(path).entries.values())


def conversion_bound(model: Path, output: Path) -> int:
    shard = max(path.stat().st_size for path in output.glob("rank*.safetensors"))
    return shard + largest_tensor(model) + 150 * MB


def test_case_A6_a_conversion_does_not_hold_the_checkpoint(tmp_path: Path) -> None:
    model = write_small_model(tmp_path / "model", shards=2, **SMALL)
    assert sum(path.stat().st_size for path in model.iterdir()) > 150 * MB
    held = peak("convert", "none", model, tmp_path / "out").anonymous
    assert held <= conversion_bound(model, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_conversion_of_two_gigabytes_is_bounded(tmp_path: Path) -> None:
    model = write_small_model(tmp_path / "model", shards=3, **LARGE)
    held = peak("convert", "none", model, tmp_path / "out").anonymous
    assert held <= conversion_bound(model, tmp_path / "out")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("large") / "model", shards=3, damping=0.1, **LARGE)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_four_bit_engine_of_two_gigabytes_is_written_within_bounds(large: Path, tmp_path: Path) -> None:
    """Up to its proof, whose own memory is over this bound: docs/models.md."""
    held = peak("write", "int4", large, tmp_path / "out")
    assert held.anonymous <= engine_bound(large, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("weights", ["bf16", "int8", "f32"])
def test_a_build_of_two_gigabytes_is_bounded_and_billed(weights: str, large: Path, tmp_path: Path) -> None:
    """Its proof loads and runs the engine: the library must not hold a second copy of the weights."""
    held = peak("build", weights, large, tmp_path / "out")
    assert held.anonymous <= engine_bound(large, tmp_path / "out")
    assert held.resident <= held.billed <= 1.12 * held.resident


def engine_bound(model: Path, output: Path) -> int:
    return written(output) + largest_tensor(model) + 300 * MB


def written(output: Path) -> int:
    return sum(path.stat().st_size for path in output.iterdir())
