"""The reference forward pass agrees with Hugging Face transformers on every family and option."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from build_scripts.decoder import Decoder
from build_scripts.golden.tiny_models import TINY_MODELS, TinyModel, tokens
from build_scripts.hf_checkpoint import HfCheckpoint
from build_scripts.reference.unsharded import log_probabilities
from tests.build_scripts.tiny import BY_NAME, golden, write_model

TOLERANCE = 1e-5
"""What transformers computes in float32 inside (norms, rotary tables) is that far from float64."""


def difference(checkpoint: HfCheckpoint, decoder: Decoder, model: TinyModel) -> float:
    found = log_probabilities(decoder, checkpoint, tokens(model))[list(model.positions)]
    return float(np.abs(found - golden(model.name)).max())


@pytest.mark.parametrize("model", TINY_MODELS, ids=lambda model: model.name)
def test_reference_agrees_with_transformers(model: TinyModel, tmp_path: Path) -> None:
    checkpoint = HfCheckpoint(write_model(tmp_path, model))
    assert difference(checkpoint, checkpoint.decoder, model) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mistral-window", {"windows": ()}),
        ("gemma2", {"attention_cap": None}),
        ("gemma2", {"logit_cap": None}),
        ("gemma2", {"norm_shift": 0.0}),
        ("gemma2", {"embedding_scale": 1.0}),
        ("gemma2", {"attention_scale": 0.25}),
        ("gemma3", {"local_rope": None}),
        ("llama2", {"activation": "gelu_tanh"}),
        ("llama2", {"norm_epsilon": 1e-2}),
    ],
)
def test_every_option_matters(name: str, change: dict[str, object], tmp_path: Path) -> None:
    """Golden data that an option does not move could not show that the option is right."""
    checkpoint = HfCheckpoint(write_model(tmp_path, BY_NAME[name]))
    wrong = dataclasses.replace(checkpoint.decoder, **change)  # type: ignore[arg-type]
    assert difference(checkpoint, wrong, BY_NAME[name]) > 100 * TOLERANCE


@pytest.mark.parametrize("name", [model.name for model in TINY_MODELS if "rope_scaling" in model.config])
def test_every_scaling_matters(name: str, tmp_path: Path) -> None:
    checkpoint = HfCheckpoint(write_model(tmp_path, BY_NAME[name]))
    unscaled = dataclasses.replace(checkpoint.decoder.rope, scaling=type(checkpoint.decoder.rope.scaling)())
    moved = difference(checkpoint, dataclasses.replace(checkpoint.decoder, rope=unscaled), BY_NAME[name])
    if name == "llama-dynamic":
        assert moved < TOLERANCE  # within its original context dynamic scaling changes nothing
    else:
        assert moved > 100 * TOLERANCE


def test_float32_is_near_float64(tmp_path: Path) -> None:
    model = BY_NAME["llama2"]
    checkpoint = HfCheckpoint(write_model(tmp_path, model))
    single = log_probabilities(checkpoint.decoder, checkpoint, tokens(model), np.float32)
    double = log_probabilities(checkpoint.decoder, checkpoint, tokens(model))
    assert single.dtype == np.float32
    assert np.abs(single - double).max() < 1e-4
