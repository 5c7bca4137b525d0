"""`firsttoken build` and `firsttoken inspect` as people and programs use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firsttoken.cli import main
from tests.build.tiny_gguf import write_tiny_gguf


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return str(write_tiny_gguf(tmp_path / "tiny.gguf"))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    assert main([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_build_then_inspect(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", model]) == 0
    said = capsys.readouterr().out
    assert "built engine-cache/tiny-gguf" in said
    assert "no golden data is committed for this file" in said
    assert main(["build", model]) == 0
    assert "up to date: nothing to build" in capsys.readouterr().out
    assert main(["inspect", "engine-cache/tiny-gguf"]) == 0
    assert "this machine can serve it" in capsys.readouterr().out


def test_a_plan_costs_nothing_and_leaves_nothing(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build", model, "--plan"]) == 0
    said = capsys.readouterr().out
    assert "memory while building" in said
    assert "sequences" in said
    assert not (tmp_path / "engine-cache").exists()


def test_programs_get_one_object(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = answer(capsys, "build", model, "--weights", "f32", "--output", "out", "--plan")
    assert (plan["status"], plan["up_to_date"], plan["bill"]["kv_precision"]) == ("planned", False, "f32")
    build = answer(capsys, "build", model, "--weights", "f32", "--output", "out")
    assert (build["status"], build["manifest"]["numerics"]["weights"]) == ("built", "f32")
    assert answer(capsys, "build", model, "--weights", "f32", "--output", "out")["status"] == "up_to_date"
    assert answer(capsys, "build", model, "--weights", "f32", "--output", "out", "--force")["status"] == "built"
    inspection = answer(capsys, "inspect", "out")
    assert inspection["servable"] is True
    assert inspection["manifest"]["fingerprint"] == build["manifest"]["fingerprint"]


def test_a_damaged_engine_is_told_with_a_status(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["build", model, "--output", "out"])
    capsys.readouterr()
    (tmp_path / "out" / "tokenizer.json").write_text("{}")
    assert answer(capsys, "inspect", "out", status=1)["servable"] is False
    assert main(["inspect", "out"]) == 1
    assert "this machine cannot serve it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["build", "absent.gguf"], "firsttoken build: absent.gguf: there is no such file\n"),
        (["build", "smolm"], 'firsttoken build: model "smolm" is not known'),
        (
            ["build", "tiny.gguf", "--kv-cache", "bf16", "--activations", "f32"],
            "firsttoken build: --kv-cache bf16 needs --activations bf16",
        ),
        (["inspect", "absent"], "firsttoken inspect: absent/engine.json: no such file"),
    ],
)
def test_what_goes_wrong_is_one_sentence(
    arguments: list[str], says: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
