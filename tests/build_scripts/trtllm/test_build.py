"""A checkpoint appears whole or not at all, is resumed, reused, explained and verified."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from build_scripts import host
from build_scripts.casting import FloatType
from build_scripts.errors import BuildError, CheckpointError, PublishError, UnsupportedError, VerificationError
from build_scripts.rebuild import plan_rebuild
from build_scripts.trtllm import build as checkpoint_build
from build_scripts.trtllm import convert as convert_module
from build_scripts.trtllm.build import CheckpointPlan, CheckpointRequest, build, make_plan, next_command
from build_scripts.trtllm.layout import Layout
from build_scripts.trtllm.record import RECORD_NAME, read_record
from build_scripts.trtllm.verify import verify_against, verify_files
from tests.build_scripts.small_models import write_small_model
from tests.build_scripts.trtllm.watched_conversion import request
from tests.engines_built import SilentReporter

ROOT = Path(__file__).parents[3]
QUIET = SilentReporter()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("source") / "small", shards=2)


def planned(model: Path, output: Path) -> CheckpointPlan:
    return make_plan(request(str(model), output), QUIET)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def convert(model: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.build_scripts.trtllm.watched_conversion", str(model), str(output), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_what_is_built_is_whole_recorded_and_proven(model: Path, tmp_path: Path) -> None:
    record = build(planned(model, tmp_path / "out"), QUIET)
    assert sorted(entry.name for entry in record.files) == [
        "config.json",
        *(f"rank{rank}.safetensors" for rank in range(4)),
    ]
    assert read_record(tmp_path / "out") == record
    assert (record.tp, record.pp, record.dtype, record.max_attention_window) == (2, 2, "bfloat16", (256, 256))
    assert verify_files(tmp_path / "out") == record
    assert verify_against(tmp_path / "out", model, 24).max_difference < 1e-12
    assert not [path for path in tmp_path.iterdir() if ".build-" in path.name]


def test_the_same_input_builds_nothing_and_gives_the_same_bytes(model: Path, tmp_path: Path) -> None:
    plan = planned(model, tmp_path / "out")
    assert not plan.up_to_date()
    build(plan, QUIET)
    assert planned(model, tmp_path / "out").up_to_date()
    build(planned(model, tmp_path / "again"), QUIET)
    assert contents(tmp_path / "out") == contents(tmp_path / "again")


def test_another_layout_or_source_is_another_checkpoint(model: Path, tmp_path: Path) -> None:
    build(planned(model, tmp_path / "out"), QUIET)
    assert not make_plan(request(str(model), tmp_path / "out", tp=1), QUIET).up_to_date()
    other = write_small_model(tmp_path / "small", seed=1)
    assert not planned(other, tmp_path / "out").up_to_date()


def test_case_A11_a_conversion_killed_at_random_moments_serves_nothing_and_resumes(model: Path, tmp_path: Path) -> None:
    whole = convert(model, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    generator = np.random.default_rng(11)
    moments = generator.choice(np.arange(1, int(whole.stdout) + 1), 10, replace=False)
    for moment in sorted(int(value) for value in moments):
        target = tmp_path / f"out{moment}"
        assert convert(model, target, "--kill-at", str(moment)).returncode == -9
        if target.exists():
            verify_files(target)
        build(planned(model, target), QUIET)
        assert contents(target) == contents(tmp_path / "whole")
        assert not list(tmp_path.glob(f".{target.name}.build-*"))


def test_a_finished_stage_is_not_converted_again(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write_stage = convert_module.write_stage

    def interrupted(conversion: object, recipe: object, scratch: Path, stage: int, progress: object) -> None:
        written.append(stage)
        if len(written) == 2:
            raise KeyboardInterrupt
        write_stage(conversion, recipe, scratch, stage, progress)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint_build, "write_stage", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(planned(model, tmp_path / "out"), QUIET)
    assert not (tmp_path / "out").exists()
    build(planned(model, tmp_path / "out"), QUIET)
    assert written == [0, 1, 1]
    build(planned(model, tmp_path / "fresh"), QUIET)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_a_half_file_of_a_dead_build_is_not_believed(model: Path, tmp_path: Path) -> None:
    """A marker's hashes are checked: a file that was changed behind it is made again."""
    plan = planned(model, tmp_path / "out")
    scratch = tmp_path / f".out.build-{plan.fingerprint[:16]}"
    build(planned(model, tmp_path / "good"), QUIET)
    scratch.mkdir()
    (scratch / "rank0.safetensors").write_bytes(b"half")
    (scratch / ".stage-rank-files-of-stage-0.json").write_bytes(b"{}")
    build(plan, QUIET)
    assert contents(tmp_path / "out") == contents(tmp_path / "good")


def test_two_conversions_at_once_do_not_harm_each_other(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.build_scripts.trtllm.watched_conversion", str(model), str(tmp_path / "out")]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in "ab"
    ]
    outcomes = [(process.communicate()[1], process.returncode) for process in running]
    assert 0 in [code for _, code in outcomes]
    assert all(code == 0 or "another build" in errors for errors, code in outcomes)
    verify_files(tmp_path / "out")


@pytest.mark.parametrize("limit", [0, 3000, 60_000])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(limit: int, model: Path, tmp_path: Path) -> None:
    outcome = convert(model, tmp_path / "place" / "out", "--file-limit", str(limit))
    assert outcome.returncode == 1, outcome.stderr
    assert outcome.stderr.strip() == f"{tmp_path / 'place'}: the disk is full"
    assert [path.name for path in (tmp_path / "place").iterdir()] == [".out.lock"]


def test_an_output_that_cannot_be_written_is_one_sentence(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PublishError, match="cannot be written"):
        build(planned(model, tmp_path / "file" / "out"), QUIET)


def test_a_directory_of_other_things_is_left_alone(model: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(PublishError, match="with other things in it"):
        build(planned(model, tmp_path), QUIET)


def test_case_A5_too_little_memory_is_refused_unless_forced(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "available_memory", lambda: 10**6)
    with pytest.raises(BuildError, match=r"needs 15\d MB of memory and 1 MB are available; --force"):
        build(planned(model, tmp_path / "out"), QUIET)
    build(planned(model, tmp_path / "out"), QUIET, force=True)


def test_a_weight_that_is_not_finite_ends_the_build(tmp_path: Path) -> None:
    source = write_small_model(tmp_path / "small")
    path = source / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-2:] = (0x7FC0).to_bytes(2, "little")
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="holds a value that is not finite"):
        build(planned(source, tmp_path / "out"), QUIET)
    assert not (tmp_path / "out").exists()


def test_verify_finds_a_changed_byte_and_another_source(model: Path, tmp_path: Path) -> None:
    build(planned(model, tmp_path / "out"), QUIET)
    other = write_small_model(tmp_path / "other", seed=1)
    with pytest.raises(VerificationError, match="other is not what the checkpoint was made of"):
        verify_against(tmp_path / "out", other, 4)
    path = tmp_path / "out" / "rank3.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(VerificationError, match=r"rank3\.safetensors is missing or not what was built"):
        verify_files(tmp_path / "out")
    with pytest.raises(CheckpointError, match=f"holds no {RECORD_NAME}"):
        verify_files(tmp_path / "other")


def test_rebuild_says_what_is_stale_and_does_only_that(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    build(planned(model, output), QUIET)
    assert not plan_rebuild(output, str(model), tmp_path, QUIET).needed
    (output / "rank2.safetensors").unlink()
    rebuild = plan_rebuild(output, str(model), tmp_path, QUIET)
    assert [(stage.stale, stage.why) for stage in rebuild.stages] == [
        (False, "up to date"),
        (True, "its files are not what was built"),
    ]
    done: list[int] = []
    write_stage = convert_module.write_stage

    def counted(conversion: object, recipe: object, scratch: Path, stage: int, progress: object) -> None:
        done.append(stage)
        write_stage(conversion, recipe, scratch, stage, progress)  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoint_build, "write_stage", counted)
    rebuild.run(QUIET)
    assert done == [1]
    verify_files(output)


def test_rebuild_names_the_recipe_or_the_source(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(planned(model, tmp_path / "out"), QUIET)
    monkeypatch.setattr(checkpoint_build, "RECIPE", "trtllm-checkpoint-9")
    stage = plan_rebuild(tmp_path / "out", str(model), tmp_path, QUIET).stages[0]
    assert stage.why == "recipe trtllm-checkpoint-1 -> trtllm-checkpoint-9"
    other = write_small_model(tmp_path / "small", seed=1)
    assert "source " in plan_rebuild(tmp_path / "out", str(other), tmp_path, QUIET).stages[0].why
    with pytest.raises(BuildError, match="built from small, a path that is not recorded: give it with --model"):
        plan_rebuild(tmp_path / "out", None, tmp_path, QUIET)


@pytest.mark.parametrize(("weights", "algo"), [("int8", "W8A16"), ("int4", "W4A16")])
def test_weight_only_is_told_to_the_engine_builder(weights: str, algo: str, model: Path, tmp_path: Path) -> None:
    wanted = CheckpointRequest(
        str(model), tmp_path / "out", Layout(2, 1), None, weights, share_embedding=False, cache=tmp_path
    )
    plan = make_plan(wanted, QUIET)
    build(plan, QUIET)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["quantization"]["quant_algo"], config["dtype"]) == (algo, "bfloat16")
    assert "trtllm-build quantises them" in plan.opened.notes[0]
    assert verify_against(tmp_path / "out", model, 8).max_difference < 1e-12
    plain = make_plan(request(str(model), tmp_path / "plain", pp=1), QUIET)
    assert plan.bill.ranks[0].weights < plain.bill.ranks[0].weights


@pytest.mark.parametrize(
    ("dtype", "weights", "says"),
    [
        (None, "fp8", r"fp8 needs calibration on a GPU, which ModelOpt does: run `python hf_ptq\.py"),
        (None, "gguf", "--weights gguf is none of TensorRT-LLM's; there are int8, int4, fp8"),
        ("float32", "int8", "W8A16 is made of float16 or bfloat16"),
    ],
)
def test_other_forms_are_refused_with_what_to_do(
    dtype: FloatType | None, weights: str, says: str, model: Path, tmp_path: Path
) -> None:
    wanted = CheckpointRequest(
        str(model), tmp_path / "out", Layout(1, 1), dtype, weights, share_embedding=False, cache=tmp_path
    )
    with pytest.raises(UnsupportedError, match=says):
        make_plan(wanted, QUIET)


def test_the_next_command_names_the_checkpoint(model: Path, tmp_path: Path) -> None:
    command = next_command(planned(model, tmp_path / "out"))
    assert command.startswith(f"trtllm-build --checkpoint_dir {tmp_path / 'out'} ")
