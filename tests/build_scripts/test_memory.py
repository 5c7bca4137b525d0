"""Builds hold a tensor and a result at a time, never the checkpoint (case A6)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import gguf
import pytest

from build_scripts.numerics import FORMS
from build_scripts.safetensors_file import SafetensorsFile
from tests.build.tiny_gguf import Kind, TinyShape, write_tiny_gguf
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
@pytest.mark.parametrize("weights", [form for form in FORMS if form != "gguf"])
def test_a_build_of_two_gigabytes_is_bounded_and_billed(weights: str, large: Path, tmp_path: Path) -> None:
    """Its proof loads and runs the engine: the library must not hold a second copy of the weights, nor the process what it freed."""
    held = peak("build", weights, large, tmp_path / "out")
    assert held.anonymous <= written(tmp_path / "out") + largest_tensor(large) + 300 * MB
    assert held.resident <= held.billed <= 1.12 * held.resident


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_1])
def test_a_build_of_a_large_gguf_file_is_bounded_and_billed(kind: Kind, tmp_path: Path) -> None:
    """A gigabyte in Q8_0, half of one in Q4_1: groups of 32 have the most scales and zeros, which the library turns into copies."""
    shape = TinyShape(layers=16, hidden=2048, intermediate=8192, heads=16, kv_heads=4, tied=False)
    model = write_tiny_gguf(tmp_path / "model.gguf", shape=shape, matrices=kind, damping=0.005)
    largest = max(int(tensor.n_bytes) for tensor in gguf.GGUFReader(model).tensors)
    held = peak("build", "gguf", model, tmp_path / "out")
    assert held.anonymous <= written(tmp_path / "out") + largest + 300 * MB
    assert held.resident <= held.billed <= 1.12 * held.resident


def written(output: Path) -> int:
    return sum(path.stat().st_size for path in output.iterdir())
