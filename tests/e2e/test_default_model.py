"""The default model, really built: its numbers are the reference's, its tokens llama.cpp's, its size what was billed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from build_scripts.build import BuildRequest, make_plan
from build_scripts.inspection import inspect_engine
from build_scripts.numerics import NumericsWish, numerics_choice
from build_scripts.source import DEFAULT_MODEL, default_cache
from tests.engines_built import SilentReporter, default_engine, f32_engine

ROOT = Path(__file__).resolve().parents[2]
KNOWN_IDS = json.loads((ROOT / "tests" / "build" / "smollm2_ids.json").read_text())
"""Texts and the ids that llama.cpp's server gives them (its /tokenize with this very GGUF, special tokens parsed)."""


@pytest.mark.parametrize("known", KNOWN_IDS, ids=lambda known: ascii(known["text"])[1:25])
def test_tokens_are_those_of_llama_cpp(known: dict[str, object]) -> None:
    tokenizer = Tokenizer.from_file(str(default_engine() / "tokenizer.json"))
    ids = tokenizer.encode(known["text"]).ids
    assert ids == known["ids"]
    assert tokenizer.decode(ids, skip_special_tokens=False) == known["text"]


def test_the_default_engine_is_as_exact_as_promised() -> None:
    inspection = inspect_engine(default_engine())
    numerics = inspection.manifest.numerics
    assert inspection.servable, inspection.problems
    assert numerics.golden_reference.startswith("transformers")
    # Of two forms of the weights, the narrow one is compared at the last 48 positions of the 8 sequences.
    assert numerics.golden_positions == 602 + (8 * 48 if numerics.wide_weights else 0)
    # Per cent of positions, mean and greatest difference of log-probabilities, tolerance: docs/building.md has the figures, by
    # what this CPU computes in. llama.cpp's kernels agree on 97.1 % with the same file.
    agreement, mean, most, tolerance = {"f32": (99.5, 0.005, 0.05, 0.05), "bf16": (97.1, 0.05, 1.0, 2.0)}[
        numerics.activations
    ]
    assert 100 * numerics.golden_argmax_agreement >= agreement
    assert numerics.golden_mean_difference < mean
    assert numerics.golden_max_difference < most
    assert numerics.tolerance < tolerance


def test_the_float32_engine_generates_the_references_tokens() -> None:
    numerics = inspect_engine(f32_engine()).manifest.numerics
    assert numerics.batch_invariant
    assert numerics.golden_argmax_agreement == 1.0
    assert (numerics.golden_greedy_equal, numerics.golden_greedy_total) == (8, 8)
    assert numerics.golden_max_difference < 1e-3


def test_the_engine_weighs_what_was_billed() -> None:
    for engine, choice in ((default_engine(), NumericsWish("gguf")), (f32_engine(), numerics_choice("f32"))):
        plan = make_plan(BuildRequest(DEFAULT_MODEL, engine, choice, default_cache()), SilentReporter())
        size = sum(path.stat().st_size for path in engine.iterdir())
        assert plan.bill.weights < size <= plan.bill.disk


@pytest.mark.slow
def test_the_build_takes_no_more_memory_than_billed(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from firsttoken.cli import main\n"
        "status = main(sys.argv[1:]); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(status)"
    )
    arguments = ["build", "--force", "--json", "--output", str(tmp_path / "engine")]
    command = [sys.executable, "-c", program, *arguments]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    document, peak_kilobytes = outcome.stdout.splitlines()
    assert int(peak_kilobytes) * 1024 <= json.loads(document)["bill"]["build_memory"]
