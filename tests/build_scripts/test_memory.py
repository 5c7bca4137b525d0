"""Builds hold a tensor and a result at a time, never the checkpoint (case A6)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def peak(work: str, model: Path, output: Path) -> int:
    command = [sys.executable, "-m", "tests.build_scripts.measured_memory", work, str(model), str(output)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def largest_tensor(model: Path) -> int:
    return max(entry.nbytes for path in model.glob("*.safetensors") for entry in SafetensorsFile(path).entries.values())


def conversion_bound(model: Path, output: Path) -> int:
    shard = max(path.stat().st_size for path in output.glob("rank*.safetensors"))
    return shard + largest_tensor(model) + 150 * MB


def test_case_A6_a_conversion_does_not_hold_the_checkpoint(tmp_path: Path) -> None:
    model = write_small_model(tmp_path / "model", shards=2, **SMALL)
    assert sum(path.stat().st_size for path in model.iterdir()) > 150 * MB
    held = peak("convert", model, tmp_path / "out")
    assert held <= conversion_bound(model, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_conversion_of_two_gigabytes_is_bounded(tmp_path: Path) -> None:
    model = write_small_model(tmp_path / "model", shards=3, **LARGE)
    held = peak("convert", model, tmp_path / "out")
    assert held <= conversion_bound(model, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_engine_of_two_gigabytes_is_made_within_bounds(tmp_path: Path) -> None:
    model = write_small_model(tmp_path / "model", shards=3, **LARGE)
    for weights in ("bf16", "int8", "int4"):
        held = peak(weights, model, tmp_path / weights)
        assert held <= written(tmp_path / weights) + largest_tensor(model) + 300 * MB, weights


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_whole_embedded_build_of_two_gigabytes_is_bounded(tmp_path: Path) -> None:
    """Its proof loads and runs the engine: the library must not hold a second copy of the weights."""
    model = write_small_model(tmp_path / "model", shards=3, **LARGE)
    held = peak("embed", model, tmp_path / "out")
    assert held <= written(tmp_path / "out") + largest_tensor(model) + 300 * MB


def written(output: Path) -> int:
    return sum(path.stat().st_size for path in output.iterdir())
