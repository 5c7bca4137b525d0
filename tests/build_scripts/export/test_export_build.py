"""From what an exporter leaves to an engine that serves, and every refusal on the way. The exporter itself stands in."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from build_scripts.build import BuildRequest
from build_scripts.build import make_plan as make_own_plan
from build_scripts.errors import BuildError, UnsupportedError, VerificationError
from build_scripts.export.build import ExportPlan, ExportRequest, build, make_plan
from build_scripts.export.environment import PINS, VARIABLE
from build_scripts.export.exported import max_context
from build_scripts.inspection import inspect_engine
from build_scripts.numerics import NumericsWish, WeightForm
from build_scripts.rebuild import plan_rebuild
from firsttoken.cli import main
from tests.build_scripts.export.stand_in import COMMITTED, write_python, write_source
from tests.engines_built import SilentReporter


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write_python(tmp_path / "python")
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.chdir(tmp_path)
    return path


def planned(tmp_path: Path, weights: WeightForm | None = None, config: dict[str, object] | None = None) -> ExportPlan:
    source = write_source(tmp_path / "model", **(config or {}))
    request = ExportRequest(str(source), tmp_path / "engine", NumericsWish(weights), tmp_path / "cache")
    return make_plan(request, SilentReporter())


def test_an_exported_graph_becomes_an_engine(python: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path)
    manifest = build(plan, SilentReporter())
    model = manifest.model
    assert (model.family, model.layers, model.heads, model.kv_heads, model.head_dim) == ("gpt2", 1, 2, 2, 16)
    assert (model.hidden, model.intermediate, model.vocab_size, model.max_context) == (32, 128, 264, 96)
    assert manifest.numerics.golden_reference == "transformers 4.57.6, torch 2.13.0"
    assert manifest.numerics.golden_argmax_agreement == 1.0
    assert manifest.numerics.golden_max_difference <= 1e-5
    assert manifest.tools["optimum-intel"] == PINS["optimum-intel"]
    assert inspect_engine(tmp_path / "engine").servable
    assert sorted(path.name for path in (tmp_path / "engine").iterdir()) == [
        "engine.json", "model.bin", "model.xml", "reference.json", "tokenizer.json",
    ]  # fmt: skip
    assert plan.up_to_date()


def test_a_rebuild_exports_again_only_what_is_stale(python: Path, tmp_path: Path) -> None:
    build(planned(tmp_path), SilentReporter())
    rebuild = plan_rebuild(tmp_path / "engine", str(tmp_path / "model"), tmp_path / "cache", SilentReporter())
    assert not rebuild.needed
    (tmp_path / "engine" / "tokenizer.json").write_text("{}")
    rebuild = plan_rebuild(tmp_path / "engine", str(tmp_path / "model"), tmp_path / "cache", SilentReporter())
    assert [stage.name for stage in rebuild.stages if stage.stale] == ["tokenizer"]
    write_python(python, failure='sys.exit("exported again")')
    rebuild.run(SilentReporter())
    assert inspect_engine(tmp_path / "engine").servable


def test_a_graph_that_computes_something_else_is_not_published(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = json.loads((COMMITTED / "reference.json").read_text())
    reference["sequences"][0]["logprobs"][5] -= 0.01
    (tmp_path / "other.json").write_text(json.dumps(reference))
    write_python(python, failure="pass")
    program = python.read_text() + f'    shutil.copy("{tmp_path}/other.json", output / "reference.json")\n'
    python.write_text(program)
    with pytest.raises(VerificationError, match=r"differ from the reference by up to 0\.01"):
        build(planned(tmp_path), SilentReporter())
    assert not (tmp_path / "engine").exists()


def test_an_exporter_that_fails_is_quoted(python: Path, tmp_path: Path) -> None:
    write_python(python, failure='raise ValueError("rwkv is not supported")')
    with pytest.raises(
        UnsupportedError, match="optimum-intel cannot export this model: ValueError: rwkv is not supported"
    ):
        build(planned(tmp_path), SilentReporter())
    assert not (tmp_path / "engine").exists()


def test_an_exporter_that_is_killed_is_told(python: Path, tmp_path: Path) -> None:
    write_python(python, failure="import os; os.kill(os.getpid(), 9)")
    with pytest.raises(BuildError, match="killed by signal 9"):
        build(planned(tmp_path), SilentReporter())


def test_without_an_environment_the_commands_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UnsupportedError) as refusal:
        planned(tmp_path)
    place = re.escape(str(tmp_path / "cache" / "export-env"))
    assert re.search(
        rf"`python3 -m venv {place} && {place}/bin/pip install optimum-intel==1\.27\.0 .*torch==2\.13\.0",
        str(refusal.value),
    )


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ({"torch": None}, r"has torch not installed, 2\.13\.0 is needed: make one with"),
        ({"transformers": "5.0.0"}, r"has transformers 5\.0\.0, 4\.57\.6 is needed"),
        ({"openvino": "2025.1.0"}, r"has openvino 2025\.1\.0, 20"),
    ],
)
def test_an_environment_with_other_versions_is_refused(
    python: Path, tmp_path: Path, versions: dict[str, str | None], says: str
) -> None:
    write_python(python, **versions)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=says):
        planned(tmp_path)


def test_a_build_number_is_no_other_version(python: Path, tmp_path: Path) -> None:
    write_python(python, torch="2.13.0+cpu")
    assert planned(tmp_path).environment.versions["torch"] == "2.13.0+cpu"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"is_encoder_decoder": True}, "is_encoder_decoder is not implemented"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not implemented"),
        ({"n_positions": None}, "config.json names no longest sequence"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number, at least 1, the file has 'many'"),
        ({"vocab_size": 8}, "tokenizer.json and the model do not belong together"),
        ({"quantization_config": {"quant_method": "gptq"}}, '"gptq" is not implemented'),
        ({"model_type": None, "auto_map": {"AutoModel": "code.Model"}}, "code of the checkpoint's own"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_the_exporter_runs(
    python: Path, tmp_path: Path, config: dict[str, object], says: str
) -> None:
    with pytest.raises(BuildError, match=re.escape(says)):
        planned(tmp_path, config=config)


def test_other_weights_are_refused(python: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="--weights int4 is not implemented for --export, which has f32, f16"):
        planned(tmp_path, weights="int4")


def test_rotations_that_change_with_length_end_at_the_original_context() -> None:
    config = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    assert max_context(config | {"rope_scaling": {"rope_type": "longrope"}}) == 4096
    assert max_context(config | {"rope_scaling": {"rope_type": "linear"}}) == 131072


def test_the_probe_crosses_the_window(python: Path, tmp_path: Path) -> None:
    _, random = planned(tmp_path, config={"n_positions": 4096, "sliding_window": 512}).prompts()
    assert len(random) == 576


def test_a_family_that_is_not_described_names_the_way(tmp_path: Path) -> None:
    source = write_source(tmp_path / "model")
    request = BuildRequest(str(source), None, NumericsWish(), tmp_path)
    with pytest.raises(UnsupportedError, match=r'model_type "gpt2" is not implemented.*--export'):
        make_own_plan(request, SilentReporter())


def test_the_extra_says_the_same() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]["export"]) == {f"{name}=={version}" for name, version in PINS.items()}


def test_the_command(python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["build", str(write_source(tmp_path / "model")), "--export", "--output", "out"]
    assert main([*command, "--plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["up_to_date"] is False
    assert main(command) == 0
    assert "likeliest token as in transformers 4.57.6, torch 2.13.0: 100.0%" in capsys.readouterr().out
    assert main(command) == 0
    assert "up to date: nothing to build" in capsys.readouterr().out
    assert main([*command, "--engine", "trtllm"]) == 1
    assert "--export makes engines for openvino" in capsys.readouterr().err


def test_a_tokenizer_that_serve_would_refuse_is_refused_before_the_export(
    python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_source(tmp_path / "model")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    (source / "tokenizer.json").write_text(json.dumps(tokenizer | {"decoder": None}))
    assert main(["build", str(source), "--export", "--output", str(tmp_path / "out")]) == 1
    assert "the tokenizer's decoder is missing" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
