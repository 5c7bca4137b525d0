"""Hugging Face directories become engines in every form, and a rebuild does only what is stale."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_scripts import graph
from build_scripts.build import BuildRequest, Plan, build, make_plan
from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.numerics import KvPrecision, NumericsWish, WeightForm
from build_scripts.rebuild import plan_rebuild
from build_scripts.wide_form import wide_bytes
from engines.openvino.loader import read_manifest
from tests.build_scripts.small_models import write_byte_tokenizer, write_small_model
from tests.engines_built import SilentReporter

QUIET = SilentReporter()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("source") / "small", shards=2)


def planned(model: Path, output: Path, weights: WeightForm | None = None, kv_cache: KvPrecision | None = None) -> Plan:
    return make_plan(BuildRequest(str(model), output, NumericsWish(weights, kv_cache), output.parent), QUIET)


@pytest.mark.parametrize(("weights", "share"), [(None, 1.0), ("f32", 2.0), ("int8", 0.55), ("int4", 0.5)])
def test_every_form_builds_verifies_and_takes_its_bytes(
    weights: WeightForm | None, share: float, model: Path, tmp_path: Path
) -> None:
    plan = planned(model, tmp_path / "engine", weights)
    manifest = build(plan, QUIET)
    assert manifest.source.kind == "huggingface"
    assert manifest.numerics.weights == (weights or "bf16")
    assert manifest.numerics.golden_reference.startswith("numpy")
    source = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    written = (tmp_path / "engine" / "model.bin").stat().st_size
    wide = wide_bytes(plan.decoder) if plan.choice.wide_weights else 0
    assert written == pytest.approx(plan.bill.weights - wide, rel=0.1)
    assert written < share * source * 1.2


def test_a_new_precision_of_keys_proves_again_and_builds_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "engine"
    build(planned(model, output), QUIET)
    monkeypatch.setattr(graph, "build_graph", lambda *_, **__: pytest.fail("the graph is up to date"))
    build(planned(model, output, kv_cache="f32"), QUIET)
    assert read_manifest(output).numerics.kv_cache == "f32"


def test_rebuild_of_an_engine_names_the_recipe(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "engine"
    build(planned(model, output), QUIET)
    assert not plan_rebuild(output, str(model), tmp_path, QUIET).needed
    monkeypatch.setattr(graph, "RECIPE", "decoder-9")
    rebuild = plan_rebuild(output, str(model), tmp_path, QUIET)
    assert [(stage.name, stage.stale) for stage in rebuild.stages] == [
        ("graph", True),
        ("tokenizer", False),
        ("proof", True),
    ]
    assert rebuild.stages[0].why == "recipe decoder-1 -> decoder-9"
    rebuild.run(QUIET)
    assert read_manifest(output).recipe == "decoder-9"
    assert not plan_rebuild(output, str(model), tmp_path, QUIET).needed


def test_a_capped_model_is_refused_before_work(tmp_path: Path) -> None:
    model = write_small_model(
        tmp_path / "gemma",
        model_type="gemma2",
        head_dim=16,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=50.0,
        tie_word_embeddings=True,
        hidden_activation="gelu_pytorch_tanh",
    )
    with pytest.raises(
        UnsupportedError, match=r"attn_logit_softcapping 50\.0 is not implemented on the embedded engine"
    ):
        planned(model, tmp_path / "engine")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    model = write_small_model(tmp_path / "small", vocab_size=256)
    write_byte_tokenizer(model)
    with pytest.raises(CheckpointError, match="has id 257, the embedding has 256 rows"):
        planned(model, tmp_path / "engine")
