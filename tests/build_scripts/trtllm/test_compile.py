"""Compile, prove, publish, rebuild: the real stages and, for the proof, real MPI; the compiler and the library are fakes."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import msgspec
import pytest

from engines.manifest_file import read_manifest
from engines.trtllm.machine import observe_machine
from firsttoken.cli import main
from tests.build_scripts.small_models import write_small_model
from tests.trtllm.job import environment, require_mpi

COMPILER = """#!{python}
# CONTRACT FAKE of trtllm-build: takes the options that it takes, writes files of the right names.
import json, os, pathlib, sys
from tests.build_scripts.trtllm.compiler_contract import refusal
told = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if (why := refusal({{name.removeprefix("--"): value for name, value in told.items()}})) is not None:
    sys.exit(why)
calls = pathlib.Path(os.environ["FAKE_CALLS"])
calls.write_text(calls.read_text() + " ".join(sys.argv[1:]) + "\\n" if calls.exists() else " ".join(sys.argv[1:]) + "\\n")
if os.environ.get("FAKE_FAILURE"):
    print(os.environ["FAKE_FAILURE"])
    print("AssertionError: Engine building failed, please check error log.")
    sys.exit(1)
checkpoint = json.loads((pathlib.Path(told["--checkpoint_dir"]) / "config.json").read_text())
output = pathlib.Path(told["--output_dir"])
build = {{name: int(told["--" + name]) for name in ("max_batch_size", "max_num_tokens", "max_input_len", "max_seq_len")}}
build["plugin_config"] = {{"tokens_per_block": int(told["--tokens_per_block"])}}
(output / "config.json").write_text(json.dumps({{"version": "1.2.1", "pretrained_config": checkpoint, "build_config": build}}))
for rank in range(int(told["--workers"])):
    (output / f"rank{{rank}}.engine").write_text("fake plan")
pathlib.Path(told["--output_timing_cache"]).write_text("fake cache")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two GPUs, the library and its compiler, as far as anybody looks."""
    require_mpi()
    told = environment(tmp_path)
    compiler = tmp_path / "bin" / "trtllm-build"
    compiler.write_text(COMPILER.format(python=sys.executable))
    compiler.chmod(0o755)
    for name in ("PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, told[name])
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    for path in reversed(told["PYTHONPATH"].split(":")):
        monkeypatch.syspath_prepend(path)
    write_small_model(tmp_path / "small")
    return tmp_path


def build(folder: Path, *arguments: str) -> int:
    place = ["--output", str(folder / "out" / "small-tp2")]
    fixed = ["--engine", "trtllm", "--tp", "2", "--stage", "engine", "--max-batch-size", "8", "--max-num-tokens", "64"]
    return main(["build", str(folder / "small"), *fixed, *place, *arguments])


def calls(folder: Path) -> int:
    path = folder / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_an_engine_is_compiled_proven_and_published(folder: Path) -> None:
    assert build(folder) == 0
    engine = folder / "out" / "small-tp2-engine"
    manifest = read_manifest(engine, "trtllm")
    facts = manifest.trtllm
    assert facts is not None
    assert (facts.tp, facts.tensorrt_llm, facts.compute_capability) == (2, "1.2.1", "9.0")
    assert (facts.max_batch_size, facts.max_num_tokens, facts.max_seq_len) == (8, 64, 256)
    assert {entry.name for entry in manifest.files} >= {"config.json", "rank0.engine", "rank1.engine", "tokenizer.json"}
    assert [stage.name for stage in manifest.stages] == ["engine"]
    assert not list(engine.glob(".*"))
    assert (folder / "out" / "timing.cache").exists()


def test_a_compiler_that_fails_says_what_its_log_means_and_publishes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_FAILURE", "[TRT] [E] CUDA error: out of memory")
    assert build(folder) == 1
    said = capsys.readouterr().err
    assert "trtllm-build ended with status 1: the GPU ran out of memory" in said
    assert not (folder / "out" / "small-tp2-engine" / "engine.json").exists()


def test_a_reference_that_the_engine_does_not_meet_keeps_it_from_being_published(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probes = [{"prompt": [1, 2, number], "expected": [9] * 8} for number in range(3)]
    reference = folder / "reference.json"
    reference.write_text(json.dumps({"reference": "a library that says 9", "probes": probes}))
    assert build(folder, "--reference", str(reference)) == 1
    assert "greedy continuations part from those of a library that says 9" in capsys.readouterr().err
    assert not (folder / "out" / "small-tp2-engine" / "engine.json").exists()
    assert calls(folder) == 1
    # The compilation stands: only the proof is done again.
    assert build(folder) == 0
    assert calls(folder) == 1


def test_rebuild_names_what_is_stale_and_does_only_that(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(folder) == 0
    engine = folder / "out" / "small-tp2-engine"
    arguments = ["rebuild", str(engine), "--model", str(folder / "small")]
    capsys.readouterr()
    assert main([*arguments, "--plan"]) == 0
    assert "engine: up to date" in capsys.readouterr().out
    smi = folder / "bin" / "nvidia-smi"
    smi.write_text(smi.read_text().replace("9.0", "8.9"))
    assert main([*arguments, "--plan"]) == 0
    assert "engine: stale, compute_capability 9.0 -> 8.9" in capsys.readouterr().out
    assert main(arguments) == 0
    assert calls(folder) == 2
    manifest = read_manifest(engine, "trtllm")
    assert manifest.trtllm is not None
    assert manifest.trtllm.compute_capability == "8.9"


@pytest.mark.parametrize("missing", ["gpus", "library"])
def test_a_machine_that_cannot_compile_is_told_before_anything_is_converted(
    folder: Path, missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if missing == "gpus":
        smi = folder / "bin" / "nvidia-smi"
        smi.write_text(smi.read_text().replace("1 2", "1"))
        words = "the plan needs 2 GPUs, found 1"
    else:
        without = dataclasses.replace(observe_machine(), tensorrt_llm=None)
        monkeypatch.setattr("firsttoken.engine_build.observe_machine", lambda: without)
        words = "TensorRT-LLM 1.2.1 is not installed here"
    assert build(folder) == 1
    assert words in capsys.readouterr().err
    assert not (folder / "out").exists()


def test_answers_are_judged_up_to_where_they_part() -> None:
    from build_scripts.trtllm.greedy import Probe, Probes, judge

    probes = Probes("r", (Probe((1,), (5, 6, 7, 8)), Probe((2,), (5, 6, 7, 8)), Probe((3,), ())))
    proof = judge(probes, [[5, 6, 7, 8], [5, 6, 0, 8], [9]])
    assert (proof.equal, proof.total, proof.positions, proof.agreement) == (1, 2, 8, 0.75)
    assert msgspec.to_builtins(proof)["reference"] == "r"
