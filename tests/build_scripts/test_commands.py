"""The command line of checkpoints: build for TensorRT-LLM, verify, rebuild; each failure one sentence and a status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firsttoken.cli import main
from tests.build_scripts.small_models import write_small_model


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_small_model(tmp_path / "small")


def test_build_verify_and_rebuild_a_checkpoint(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = ["build", str(model), "--engine", "trtllm", "--tp", "2", "--pp", "2", "--output", "out", "--device", "48GB"]
    assert main(build) == 0
    told = capsys.readouterr().out
    assert "sequences on 4 x 48GB" in told
    assert "trtllm-build --checkpoint_dir out" in told
    assert main(build) == 0
    assert "up to date: nothing to build" in capsys.readouterr().out
    assert main(["verify", "out"]) == 0
    assert "all 5 files are what was built" in capsys.readouterr().out
    assert main(["verify", "out", "--source", str(model), "--tokens", "9"]) == 0
    assert "9 tokens through the rank files alone give the source's log-probabilities" in capsys.readouterr().out
    assert main(["rebuild", "out", "--model", str(model)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"rank files of stage {stage}: up to date" for stage in (0, 1)]


def test_plan_as_json_reads_no_weights(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(model), "--engine", "trtllm", "--device", "H200", "--plan", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "planned"
    assert document["bill"]["device"] == "H200"
    assert document["bill"]["sequences"]["256"] > 1000
    assert not Path("engine-cache").exists()


def test_case_B1_a_device_without_room_is_told(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(model), "--engine", "trtllm", "--device", "0.001GB", "--plan"]) == 0
    assert "no room for one sequence of 256 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--engine", "trtllm", "--tp", "3"], "firsttoken build: tp 3 cannot share 4 query heads"),
        (
            ["--engine", "trtllm", "--weights", "nvfp4"],
            "nvfp4 needs calibration on a GPU, which ModelOpt does: run `python hf_ptq.py",
        ),
        (["--engine", "trtllm", "--device", "TPU"], "device 'TPU' is not in the table; there are"),
        (["--weights", "fp8"], "--weights fp8 is TensorRT-LLM's; the embedded engine has gguf, f32"),
        (["--weights", "gguf"], "--weights gguf keeps a GGUF file's own codes"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(
    arguments: list[str], says: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", str(model), *arguments]) == 1
    assert says in capsys.readouterr().err
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["small"]


@pytest.mark.parametrize(
    ("decoder", "found"), [(None, "missing"), ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece")]
)
def test_a_tokenizer_that_serve_would_refuse_is_refused_before_the_build(
    decoder: dict[str, object] | None, found: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps(tokenizer | {"decoder": decoder}))
    assert main(["build", str(model)]) == 1
    assert f"tokenizer.json: the tokenizer's decoder is {found}; supported are" in capsys.readouterr().err
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["small"]


def test_verify_and_rebuild_of_nothing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(model)]) == 1
    assert "firsttoken verify: " in capsys.readouterr().err
    assert main(["rebuild", str(model)]) == 1
    assert "firsttoken rebuild: " in capsys.readouterr().err
