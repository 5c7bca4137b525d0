"""What weights of fewer bits are held to: near ties may fall the other way, and an engine that is wrong is still refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from build_scripts import build as build_module
from build_scripts.build import BuildRequest, build, make_plan
from build_scripts.errors import VerificationError
from build_scripts.golden.reference import Golden, own_golden
from build_scripts.numerics import NumericsWish, WeightForm
from build_scripts.verify import LOSSY_TIE, near_tie
from build_scripts.weight_forms import FormedSource
from build_scripts.weights import Dense, Grouped, Weight
from engines.manifest import EngineManifest
from tests.build_scripts.small_models import write_small_model
from tests.engines_built import SilentReporter

QUIET = SilentReporter()
TOKENS = [3 + 11 * index % 250 for index in range(25)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("source") / "small")


def built(model: Path, output: Path, weights: WeightForm) -> EngineManifest:
    return build(make_plan(BuildRequest(str(model), output, NumericsWish(weights), output.parent), QUIET), QUIET)


def other_choices(model: Path, tmp_path: Path, count: int, lead: float) -> Golden:
    """A reference whose likeliest token is another than the model's at the first ``count`` positions, by this lead."""
    plan = make_plan(BuildRequest(str(model), tmp_path / "none", NumericsWish("int8"), tmp_path), QUIET)
    golden = own_golden(plan.checkpoint.decoder, plan.checkpoint.tensors, "0" * 64, TOKENS)
    (sequence,) = golden.sequences
    argmax = [(token + 1) % 250 for token in sequence.argmax[:count]] + sequence.argmax[count:]
    leads = [lead] * count + sequence.lead[count:]
    return msgspec.structs.replace(golden, sequences=[msgspec.structs.replace(sequence, argmax=argmax, lead=leads)])


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_near_ties_may_fall_the_other_way(
    weights: WeightForm, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = other_choices(model, tmp_path, 20, LOSSY_TIE[weights] - 0.01)
    monkeypatch.setattr(build_module, "find_golden", lambda _: golden)
    assert built(model, tmp_path / "engine", weights).numerics.golden_argmax_agreement <= 4 / 24


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_clear_choices_may_not(
    weights: WeightForm, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(BuildRequest(str(model), tmp_path / "none", NumericsWish(weights), tmp_path), QUIET)
    golden = other_choices(model, tmp_path, 24, near_tie(plan.choice) + 0.01)
    monkeypatch.setattr(build_module, "find_golden", lambda _: golden)
    with pytest.raises(VerificationError, match=r"at [0-3] of the (24|48) positions where the reference is clear"):
        built(model, tmp_path / "engine", weights)
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("name", ["blk.0.attn_v.weight", "blk.1.ffn_down.weight", "output.weight"])
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_matrix_with_its_rows_swapped_is_refused(
    weights: WeightForm, name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the real reference, random weights: most of its positions are near ties, and the mean difference tells."""
    honest = FormedSource.read

    def swapped(source: FormedSource, wanted: str) -> Weight:
        weight = honest(source, wanted)
        return upside_down(weight) if wanted == name else weight

    monkeypatch.setattr(FormedSource, "read", swapped)
    with pytest.raises(VerificationError):
        built(model, tmp_path / "engine", weights)
    assert not (tmp_path / "engine").exists()


def upside_down(weight: Weight) -> Weight:
    if isinstance(weight, Dense):
        return weight.take_rows(np.arange(weight.shape[0])[::-1])
    zero = None if weight.zero is None else weight.zero[::-1].copy()
    return Grouped(weight.codes[::-1].copy(), weight.scale[::-1].copy(), zero, weight.bits)
