"""Storage forms lose what their bits must lose and no more."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from build_scripts.casting import to_bfloat16
from build_scripts.errors import UnsupportedError
from build_scripts.hf_checkpoint import HfCheckpoint
from build_scripts.numerics import WeightForm
from build_scripts.weight_forms import FormedSource, check_form, int4_grouped, int8_by_row
from build_scripts.weights import Dense, Floats, Grouped
from tests.build_scripts.tiny import BY_NAME, write_model


def matrix(rows: int = 12, columns: int = 128) -> Floats:
    return np.random.default_rng(3).standard_normal((rows, columns)).astype(np.float32)


def test_int8_is_within_half_a_step_of_every_value() -> None:
    values = matrix()
    values[4] = 0
    weight = int8_by_row(Dense(values))
    assert weight.bits == 8
    assert weight.zero is None
    assert (np.abs(weight.to_float32() - values) <= weight.scale.reshape(-1, 1) * 0.5001).all()
    assert not weight.to_float32()[4].any()


def test_int8_widens_a_run_of_rows_at_a_time() -> None:
    stored = Dense(to_bfloat16(matrix(8192, 512)))
    tracemalloc.start()
    weight = int8_by_row(stored)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < weight.codes.nbytes + 8192 * 512 * 2  # a whole float32 copy would be 4 bytes a value
    assert np.array_equal(weight.codes, int8_by_row(Dense(stored.to_float32())).codes)


def test_int4_is_within_half_a_step_and_keeps_zero() -> None:
    values = matrix()
    values[:, :64] = np.abs(values[:, :64]) + 1  # a group that does not straddle zero
    values[0, 0] = 0
    weight = int4_grouped(values, "w")
    assert weight.codes.max() <= 15
    assert weight.zero is not None
    error = np.abs(weight.to_float32() - values).reshape(12, 2, 64)
    # A rounded zero point shifts a group by up to half a step more at its ends.
    assert (error <= weight.scale * 1.0001).all()
    assert weight.to_float32()[0, 0] == 0


def test_int4_needs_rows_that_divide() -> None:
    with pytest.raises(UnsupportedError, match="shares a scale among 64 values, tensor w has rows of 100"):
        int4_grouped(matrix(2, 100), "w")


def test_a_form_leaves_norms_and_widens_embeddings(tmp_path: Path) -> None:
    checkpoint = HfCheckpoint(write_model(tmp_path, BY_NAME["llama2"]))
    formed = FormedSource(checkpoint, "int4")
    assert isinstance(formed.read("output_norm.weight"), Dense)
    embedding, query = formed.read("token_embd.weight"), formed.read("blk.0.attn_q.weight")
    assert isinstance(embedding, Grouped)
    assert isinstance(query, Grouped)
    assert (embedding.bits, query.bits) == (8, 4)


def test_bfloat16_rounds_to_nearest_even(tmp_path: Path) -> None:
    checkpoint = HfCheckpoint(write_model(tmp_path, BY_NAME["llama2"]))
    values = checkpoint.read_float32("blk.0.attn_q.weight")
    found = FormedSource(checkpoint, "bf16").read("blk.0.attn_q.weight").to_float32()
    assert (np.abs(found - values) <= np.abs(values) * 2.0**-8).all()
    assert np.abs(found - values).max() > 0


@pytest.mark.parametrize("form", ["gguf", "f32", "int8"])
def test_other_forms_may_be_made_of_a_quantised_checkpoint(form: WeightForm) -> None:
    check_form(form, "gguf", {"w": "Q4_1"})


def test_int4_of_a_quantised_checkpoint_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="made of floats, and tensor w is stored as Q4_1 already"):
        check_form("int4", "gguf", {"v": "F32", "w": "Q4_1"})


def test_codes_of_a_gguf_file_are_kept_of_a_gguf_file_only() -> None:
    with pytest.raises(
        UnsupportedError, match="this checkpoint is of kind huggingface: choose f32, f16, bf16, int8 or int4"
    ):
        check_form("gguf", "huggingface", {"w": "BF16"})
