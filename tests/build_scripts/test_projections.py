"""Queries, keys and values come of one product where a checkpoint stores their weights alike, and are the same numbers where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from build_scripts.casting import to_bfloat16
from build_scripts.graph import build_graph
from build_scripts.hf_checkpoint import HfCheckpoint
from build_scripts.numerics import WeightForm
from build_scripts.weight_forms import FormedSource, int4_grouped, int8_by_row
from build_scripts.weights import Dense, Floats, Grouped, TensorSource, Weight, stacked
from tests.build_scripts.tiny import BY_NAME, write_model

MODELS = ("llama2", "llama-biases-mqa", "smollm2", "mistral-window", "qwen2", "qwen3", "gemma3", "phi3")
OTHERS = 4
"""Products of a layer beside those: output, gate, up, down."""


class Rewritten:
    """A TensorSource that gives the values' matrices as ``rewrite`` makes them, and the rest as it is."""

    def __init__(self, source: TensorSource, rewrite: Callable[[Floats], Weight]) -> None:
        self._source = source
        self._rewrite = rewrite

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._source.shapes()

    def read(self, name: str) -> Weight:
        if name.endswith("attn_v.weight"):
            return self._rewrite(self._source.read_float32(name))
        return self._source.read(name)

    def read_float32(self, name: str) -> Floats:
        return self.read(name).to_float32()


def halves(values: Floats) -> Weight:
    return Dense(to_bfloat16(values))


def widened_halves(values: Floats) -> Weight:
    return Dense(halves(values).to_float32())


def graph_of(checkpoint: HfCheckpoint, source: TensorSource) -> ov.Model:
    return build_graph(checkpoint.decoder, source, dequantise=False, progress=lambda _: None)


def products(model: ov.Model) -> int:
    """Of a weight; the rotation's and the attention's are none."""
    return sum(node.get_type_name() == "MatMul" for node in model.get_ops())


def logits(model: ov.Model) -> NDArray[np.float32]:
    ids = np.arange(3, 12, dtype=np.int64)[None]
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    inputs = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(ids.shape[1], dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    return np.array(compiled(inputs)["logits"])


@pytest.mark.parametrize("name", MODELS)
def test_one_product_where_stored_alike_and_the_same_numbers_where_not(name: str, tmp_path: Path) -> None:
    checkpoint = HfCheckpoint(write_model(tmp_path, BY_NAME[name]))
    together = graph_of(checkpoint, Rewritten(checkpoint, widened_halves))
    apart = graph_of(checkpoint, Rewritten(checkpoint, halves))
    layers = checkpoint.decoder.layers
    assert products(together) == layers * (1 + OTHERS) + 1
    assert products(apart) == layers * (3 + OTHERS) + 1
    np.testing.assert_allclose(logits(together), logits(apart), rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", ["f32", "f16", "bf16", "int8"])
def test_every_form_of_weights_is_one_product(form: WeightForm, tmp_path: Path) -> None:
    checkpoint = HfCheckpoint(write_model(tmp_path, BY_NAME["qwen3"]))
    model = graph_of(checkpoint, FormedSource(checkpoint, form))
    assert products(model) == checkpoint.decoder.layers * (1 + OTHERS) + 1


def matrix(rows: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, 128)).astype(np.float32)


FORMS: dict[str, Callable[[Floats], Weight]] = {
    "f32": Dense,
    "bf16": halves,
    "int8": lambda values: int8_by_row(Dense(values)),
    "int4 of 64": lambda values: int4_grouped(values, "w"),
    "int4 of 32": lambda values: int4_grouped(values, "w", 32),
    "int4 without zeros": lambda values: _without_zeros(int4_grouped(values, "w")),
}


def _without_zeros(weight: Grouped) -> Grouped:
    return Grouped(weight.codes, weight.scale, None, weight.bits)


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_stacked_in_order(form: str) -> None:
    parts = [FORMS[form](matrix(rows, seed)) for seed, rows in enumerate((6, 2, 3))]
    whole = stacked(parts)
    assert type(whole) is type(parts[0])
    assert whole is not None
    assert np.array_equal(whole.to_float32(), np.concatenate([part.to_float32() for part in parts]))


@pytest.mark.parametrize("one", FORMS)
@pytest.mark.parametrize("other", FORMS)
def test_what_is_stored_otherwise_is_not_stacked(one: str, other: str) -> None:
    found = stacked([FORMS[one](matrix(4, 1)), FORMS[other](matrix(4, 2))])
    assert (found is None) is (one != other)


def test_nothing_is_stacked_of_nothing() -> None:
    assert stacked([]) is None
