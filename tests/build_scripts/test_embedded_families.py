"""The embedded engine, in float32, gives transformers' log-probabilities for every family, in chunks and beside others."""

from __future__ import annotations

import dataclasses
from array import array
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from build_scripts.errors import UnsupportedError
from build_scripts.golden.tiny_models import TINY_MODELS, TinyModel, tokens
from build_scripts.graph import build_graph
from build_scripts.hf_checkpoint import HfCheckpoint
from build_scripts.reference.unsharded import log_probabilities
from engines.contract import Row, Score, SequenceSpec, StepPlan, StepRunner
from engines.manifest import MANIFEST_NAME, EngineManifest, ModelShape
from engines.openvino import load
from engines.sampling.params import SamplingParams
from tests.build_scripts.tiny import BY_NAME, golden, write_model
from tests.conformance.tiny_model import _manifest

LIMIT = 1e-4
CAPPED = ("gemma2",)
LONGER_THAN_SERVED = ("llama-dynamic-beyond", "phi3-longrope-long")
"""Their golden sequences pass the context that a cache can serve exactly."""

WHOLE = [m for m in TINY_MODELS if m.name not in (*CAPPED, *LONGER_THAN_SERVED)]


def load_engine(directory: Path, model: TinyModel) -> tuple[HfCheckpoint, StepRunner]:
    checkpoint = HfCheckpoint(write_model(directory / "source", model))
    graph = build_graph(checkpoint.decoder, checkpoint, dequantise=False, progress=lambda _: None)
    ov.save_model(graph, str(directory / "model.xml"), compress_to_fp16=False)
    (directory / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest(checkpoint)))
    return checkpoint, load(directory, kv_blocks=12, threads=2, max_rows=4, max_step_tokens=128)


def manifest(checkpoint: HfCheckpoint) -> EngineManifest:
    decoder = checkpoint.decoder
    names = (field for field in ModelShape.__struct_fields__ if field not in ("parameters", "max_context"))
    shape = ModelShape(
        **{name: getattr(decoder, name) for name in names},
        max_context=decoder.static_context,
        parameters=decoder.parameters(),
    )
    return msgspec.structs.replace(_manifest(), model=shape)


def score_row(sequence: int, ids: list[int], past: int, blocks: list[int], vocabulary: int) -> Row:
    """Every log-probability after every new token."""
    targets = array("i", [0] * len(ids))
    return Row(sequence, array("i", ids), past, (array("i", blocks),), Score(targets, top=vocabulary))


def spec(sequence: int, ids: list[int]) -> SequenceSpec:
    return SequenceSpec(sequence, 0, SamplingParams(), array("i", ids))


def full_rows(top: tuple[tuple[tuple[int, float], ...], ...], vocabulary: int) -> NDArray[np.float64]:
    rows = np.zeros((len(top), vocabulary))
    for row, pairs in zip(rows, top, strict=True):
        for token, logprob in pairs:
            row[token] = logprob
    return rows


def run_mixed(runner: StepRunner, ids: list[int], chunks: tuple[int, ...]) -> NDArray[Any]:
    """The sequence in chunks, each beside a row of another sequence of the same tokens."""
    vocabulary, rows, past = runner.limits.vocab_size, [], 0
    for step, chunk in enumerate(chunks, 1):
        new = ids[past : past + chunk]
        other = score_row(100 + step, ids[:5], 0, [8 + step % 4], vocabulary)
        opened = [spec(100 + step, ids[:5]), *([spec(1, ids)] if step == 1 else [])]
        plan = StepPlan(step, [other, score_row(1, new, past, [3, 0, 2, 1], vocabulary)], opened=opened)
        result = runner.start(plan).result()
        rows.append(full_rows(result.outputs[1].top, vocabulary))
        past += chunk
    return np.concatenate(rows)


@pytest.mark.parametrize("model", WHOLE, ids=lambda model: model.name)
def test_float32_engine_agrees_with_transformers(model: TinyModel, tmp_path: Path) -> None:
    _, runner = load_engine(tmp_path, model)
    found = run_mixed(runner, tokens(model), (17, 1, 1, 15, len(tokens(model)) - 34))
    runner.close()
    assert np.abs(found[list(model.positions)] - golden(model.name)).max() < LIMIT


@pytest.mark.parametrize("name", LONGER_THAN_SERVED)
def test_length_dependent_rotation_is_served_up_to_its_context(name: str, tmp_path: Path) -> None:
    """Beyond it earlier keys would have been turned otherwise, so the engine's own limit ends there."""
    model = BY_NAME[name]
    checkpoint, runner = load_engine(tmp_path, model)
    served = tokens(model)[: checkpoint.decoder.static_context]
    found = run_mixed(runner, served, (20, len(served) - 20))
    assert runner.limits.max_context == len(served) == 32
    runner.close()
    assert np.abs(found - log_probabilities(checkpoint.decoder, checkpoint, served)).max() < LIMIT


def test_a_cap_on_scores_is_refused_by_name_before_weights_are_read(tmp_path: Path) -> None:
    checkpoint = HfCheckpoint(write_model(tmp_path, BY_NAME["gemma2"]))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(
        UnsupportedError, match=r"attn_logit_softcapping 2\.0 is not implemented on the embedded engine"
    ):
        build_graph(checkpoint.decoder, checkpoint, dequantise=False, progress=lambda _: None)


def test_a_window_that_is_left_out_is_seen(tmp_path: Path) -> None:
    """The control: the same weights without the window are far off."""
    model = BY_NAME["mistral-window"]
    checkpoint = HfCheckpoint(write_model(tmp_path, model))
    blind = dataclasses.replace(checkpoint.decoder, windows=())
    found = log_probabilities(blind, checkpoint, tokens(model))
    assert np.abs(found[list(model.positions)] - golden(model.name)).max() > 100 * LIMIT
