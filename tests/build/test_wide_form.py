"""The second form of quantised matrices: when it is made, and that it is the same model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from build_scripts import build as build_module
from build_scripts import wide_form
from build_scripts.build import BuildRequest, Plan, build, make_plan
from build_scripts.casting import to_bfloat16
from build_scripts.errors import UnsupportedError, VerificationError
from build_scripts.gguf_checkpoint import GgufCheckpoint
from build_scripts.numerics import NumericsChoice, NumericsWish, WideForm, native_activations, numerics_choice
from build_scripts.progress import Reporter
from build_scripts.rebuild import plan_rebuild
from build_scripts.weights import Dense, Grouped
from build_scripts.wide_form import WideSource, wide_bytes
from engines.openvino.memory_need import ONE_TOKEN_BYTES, RUNTIME_BYTES
from tests.build.builds import built, contents, planned
from tests.build.tiny_gguf import Kind, write_tiny_gguf
from tests.engines_built import SilentReporter

TWO_FORMS = NumericsChoice("gguf", "f16", "f32", "bf16")
"""Float32 around both, so that any machine runs it."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def wished(model: Path, output: Path, wish: NumericsWish) -> Plan:
    return make_plan(BuildRequest(str(model), output, wish, output.parent / "cache"), SilentReporter())


@pytest.mark.parametrize(
    ("wish", "wide"),
    [
        (NumericsWish(activations="bf16"), "bf16"),
        (NumericsWish(activations="f32"), None),
        (NumericsWish(activations="bf16", wide_weights="none"), None),
        (NumericsWish(weights="bf16", activations="bf16"), None),
    ],
)
def test_quantised_weights_with_bf16_activations_get_a_wide_form(
    wish: NumericsWish, wide: WideForm | None, model: Path, tmp_path: Path
) -> None:
    plan = wished(model, tmp_path / "engine", wish)
    assert plan.choice.wide_weights == wide
    assert ("wide graph" in plan.stage_inputs()) is (wide is not None)


def test_what_is_left_to_the_machine_has_one_where_it_multiplies_bf16(model: Path, tmp_path: Path) -> None:
    wide = wished(model, tmp_path / "engine", NumericsWish()).choice.wide_weights
    assert wide == ("bf16" if native_activations() == "bf16" else None)


def test_a_checkpoint_of_floats_has_one_form(tmp_path: Path) -> None:
    floats = write_tiny_gguf(tmp_path / "tiny.gguf", matrices=Kind.BF16, embeddings=Kind.F16)
    assert wished(floats, tmp_path / "engine", NumericsWish(activations="bf16")).choice.wide_weights is None


def test_a_large_one_is_made_only_when_asked_for(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_form, "GREATEST_BYTES", 1000)
    left, asked = (
        wished(model, tmp_path / "engine", NumericsWish(activations="bf16", wide_weights=wide))
        for wide in (None, "bf16")
    )
    assert (left.choice.wide_weights, asked.choice.wide_weights) == (None, "bf16")


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        (NumericsWish(activations="f32", wide_weights="bf16"), "needs activations bf16, these are f32"),
        (NumericsWish("bf16", None, "bf16", "bf16"), "weights bf16 are not quantised here"),
    ],
)
def test_one_that_would_not_serve_is_refused(wish: NumericsWish, reason: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        wished(model, tmp_path / "engine", wish)


def test_it_holds_the_codes_numbers_rounded_to_bfloat16(model: Path) -> None:
    narrow = GgufCheckpoint(model)
    wide = WideSource(narrow)
    for name in narrow.shapes():
        stored, given = narrow.read(name), wide.read(name)
        assert isinstance(given, Dense)
        if isinstance(stored, Grouped):
            np.testing.assert_array_equal(given.values, to_bfloat16(stored.to_float32()))
        else:
            np.testing.assert_array_equal(given.values, stored.values)


def test_an_engine_of_two_forms_is_verified_billed_and_says_so(model: Path, tmp_path: Path) -> None:
    one, two = planned(model, tmp_path / "one"), planned(model, tmp_path / "two", TWO_FORMS)
    assert two.fingerprint != planned(model, tmp_path / "two", NumericsChoice("gguf", "f32", "f32")).fingerprint
    wide = wide_bytes(two.decoder)
    assert two.bill.weights - one.bill.weights == wide
    # Both files mapped, the wide form packed once, the codes twice.
    codes = one.bill.loaded - one.bill.weights - RUNTIME_BYTES
    assert two.bill.loaded - one.bill.loaded == 2 * wide + codes + ONE_TOKEN_BYTES
    manifest = build(two, SilentReporter())
    assert manifest.numerics.wide_weights == "bf16"
    assert manifest.numerics.golden_positions == 48
    assert {entry.name for entry in manifest.files} >= {"model.bin", "wide.bin", "wide.xml"}
    assert wide <= (tmp_path / "two" / "wide.bin").stat().st_size <= wide + 8192


@pytest.mark.parametrize("broken", ["write_graph", "write_wide_graph"])
def test_either_form_of_another_model_is_refused(
    broken: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = planned(write_tiny_gguf(tmp_path / "other.gguf", seed=1), tmp_path / "other", TWO_FORMS)
    write = getattr(build_module, broken)

    def of_the_other(_: Plan, scratch: Path, reporter: Reporter) -> list[str]:
        files: list[str] = write(other, scratch, reporter)
        return files

    monkeypatch.setattr(build_module, broken, of_the_other)
    with pytest.raises(VerificationError, match="where the reference is clear"):
        built(model, tmp_path / "engine", TWO_FORMS)
    assert not (tmp_path / "engine").exists()


def test_a_rebuild_keeps_the_wide_form_and_makes_it_anew_alone(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "engine"
    built(model, target, TWO_FORMS)
    kept = contents(target)
    (target / "wide.bin").write_bytes(b"\0" * len(kept["wide.bin"]))
    work = plan_rebuild(target, str(model), tmp_path / "cache", SilentReporter())
    assert [stage.name for stage in work.stages if stage.stale] == ["wide graph"]
    work.run(SilentReporter())
    assert {name: content for name, content in contents(target).items() if name != "engine.json"} == {
        name: content for name, content in kept.items() if name != "engine.json"
    }


def test_float32_around_them_the_default_choice_has_one_form() -> None:
    assert numerics_choice().wide_weights is None
