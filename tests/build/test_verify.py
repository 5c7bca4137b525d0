"""An engine that does not compute what it must is not published."""

from __future__ import annotations

from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest

from build_scripts import build as build_module
from build_scripts.errors import CheckpointError, VerificationError
from build_scripts.gguf_checkpoint import GgufCheckpoint
from build_scripts.gguf_description import describe
from build_scripts.golden.reference import Golden, GoldenSequence, find_golden, own_golden
from build_scripts.numerics import NumericsChoice, numerics_choice
from tests.build.builds import built
from tests.build.tiny_gguf import write_tiny_gguf

EXACT = numerics_choice("f32")


def golden_of(model: Path) -> Golden:
    checkpoint = GgufCheckpoint(model)
    return own_golden(describe(checkpoint), checkpoint, "0" * 64, [5 + 7 * index % 250 for index in range(25)])


def refusal(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden, choice: NumericsChoice
) -> str:
    monkeypatch.setattr(build_module, "find_golden", lambda _: golden)
    with pytest.raises(VerificationError) as failure:
        built(model, tmp_path / "engine", choice)
    assert not (tmp_path / "engine").exists()
    return str(failure.value)


def altered(golden: Golden, **fields: object) -> Golden:
    (sequence,) = golden.sequences
    return msgspec.structs.replace(golden, sequences=[msgspec.structs.replace(sequence, **fields)])


def test_a_golden_engine_passes_and_names_its_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    golden = msgspec.structs.replace(golden_of(model), made_with={"transformers": "5", "torch": "2", "gguf": "0"})
    monkeypatch.setattr(build_module, "find_golden", lambda _: golden)
    assert built(model, tmp_path / "engine", EXACT).numerics.golden_reference == "transformers 5, torch 2"


def test_one_log_probability_off_in_a_float32_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    golden = golden_of(model)
    logprobs = list(golden.sequences[0].logprobs)
    logprobs[11] += 2e-3
    says = refusal(model, tmp_path, monkeypatch, altered(golden, logprobs=logprobs), EXACT)
    assert says.startswith("log-probabilities differ from the reference by up to 0.002")


def test_one_greedy_token_off_in_a_float32_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    golden = golden_of(model)
    (sequence,) = golden.sequences
    # The last token becomes the expected continuation of the others: hardly the likeliest.
    assert sequence.argmax[-1] != sequence.prompt[-1]
    moved = altered(golden, prompt=sequence.prompt[:-1], tokens=sequence.prompt[-1:])
    says = refusal(model, tmp_path, monkeypatch, moved, EXACT)
    assert says == "greedy tokens equal the reference's on 0 of 1 prompts"


def test_another_clear_choice_is_refused_and_a_near_tie_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    golden = golden_of(model)
    argmax = list(golden.sequences[0].argmax)
    argmax[3] = (argmax[3] + 1) % 200
    lead = list(golden.sequences[0].lead)
    lead[3] = 0.3
    clear = altered(golden, argmax=argmax, lead=lead)
    assert "at 1 of 24 positions" in refusal(model, tmp_path, monkeypatch, clear, numerics_choice())
    lead[3] = 0.1
    monkeypatch.setattr(build_module, "find_golden", lambda _: altered(golden, argmax=argmax, lead=lead))
    assert built(model, tmp_path / "engine").numerics.golden_argmax_agreement == pytest.approx(23 / 24)


def test_a_drift_everywhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    golden = golden_of(model)
    drifted = altered(golden, logprobs=[value + 0.06 for value in golden.sequences[0].logprobs])
    assert "on average, 0.05 is allowed" in refusal(model, tmp_path, monkeypatch, drifted, numerics_choice())


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    def poison(writer: gguf.GGUFWriter) -> None:
        writer.tensors[0]["blk.1.ffn_norm.weight"].tensor[:] = np.nan

    model = write_tiny_gguf(tmp_path / "tiny.gguf", edit=poison)
    with pytest.raises(CheckpointError, match="holds a value that is not finite"):
        built(model, tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


def test_the_committed_golden_data_is_of_one_piece() -> None:
    golden = find_golden("b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")
    assert golden is not None
    assert len(golden.sequences) == 8
    for sequence in golden.sequences:
        check_sequence(sequence)
    assert find_golden("0" * 64) is None


def check_sequence(sequence: GoldenSequence) -> None:
    assert len(sequence.tokens) == 48
    assert len(sequence.argmax) == len(sequence.lead) == len(sequence.logprobs) == len(sequence.whole) - 1
    assert sequence.argmax[len(sequence.prompt) - 1 :] == sequence.tokens
    assert min(sequence.lead) > 1e-3
    assert max(sequence.logprobs) <= 0
