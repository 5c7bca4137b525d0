"""From a GGUF file to a published engine, end to end on a tiny model."""

from __future__ import annotations

import shutil
import subprocess
import sys
from array import array
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

import engines.openvino
from build_scripts import host
from build_scripts.build import build
from build_scripts.errors import BuildError, CheckpointError, PublishError, UnsupportedError
from build_scripts.gguf_checkpoint import GgufCheckpoint
from build_scripts.gguf_description import describe
from build_scripts.inspection import inspect_engine, is_intact
from build_scripts.numerics import NumericsChoice, numerics_choice
from build_scripts.reference.unsharded import log_probabilities
from engines.contract import Row, Score, SequenceSpec, StepPlan
from engines.manifest import MANIFEST_NAME
from engines.sampling.params import SamplingParams
from tests.build.builds import built, contents, planned
from tests.build.tiny_gguf import Kind, TinyShape, write_tiny_gguf
from tests.engines_built import SilentReporter

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def run_build(model: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.build.watched_build", str(model), str(output), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def scored(directory: Path, tokens: list[int]) -> tuple[float, ...]:
    """The published engine's log-probabilities of a text's own tokens."""
    runner = engines.openvino.load(directory, kv_blocks=8)
    row = Row(1, array("i", tokens[:-1]), 0, (array("i", range(8)),), Score(array("i", tokens[1:])))
    opened = [SequenceSpec(1, 0, SamplingParams(), array("i", tokens))]
    (output,) = runner.start(StepPlan(1, [row], opened=opened)).result().outputs
    runner.close()
    return output.logprobs


@pytest.mark.parametrize("kind", [Kind.Q4_1, Kind.Q4_0, Kind.Q8_0, Kind.F16, Kind.BF16, Kind.F32])
def test_an_exact_engine_computes_the_checkpoints_numbers(kind: Kind, tmp_path: Path) -> None:
    """Law: kept bit for bit. With float32 around the weights, the engine is the checkpoint's forward pass."""
    shape = TinyShape(layers=3, kv_heads=2, tied=kind is not Kind.F16)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", matrices=kind, shape=shape)
    built(path, tmp_path / "engine", NumericsChoice(weights="gguf", kv_cache="f32"))
    checkpoint = GgufCheckpoint(path)
    tokens = (
        Tokenizer.from_file(str(tmp_path / "engine" / "tokenizer.json")).encode("the rain in the there on 42 hills").ids
    )
    table = log_probabilities(describe(checkpoint), checkpoint, tokens[:-1])
    expected = table[np.arange(len(tokens) - 1), tokens[1:]]
    np.testing.assert_allclose(scored(tmp_path / "engine", tokens), expected, atol=1e-4)


@pytest.mark.parametrize(
    "choice",
    [
        numerics_choice(),
        numerics_choice("f32"),
        numerics_choice(kv_cache="u8"),
        numerics_choice(activations="bf16"),
        numerics_choice(kv_cache="bf16", activations="bf16"),
    ],
    ids=lambda choice: f"{choice.weights}-{choice.kv_cache}-{choice.activations}",
)
def test_the_manifest_says_what_was_built_and_found(choice: NumericsChoice, model: Path, tmp_path: Path) -> None:
    manifest = built(model, tmp_path / "engine", choice)
    assert msgspec.json.decode((tmp_path / "engine" / MANIFEST_NAME).read_bytes(), type=type(manifest)) == manifest
    assert {entry.name for entry in manifest.files} == {"model.xml", "model.bin", "tokenizer.json"}
    assert (manifest.source.origin, manifest.source.licence) == ("tiny.gguf", "cc0-1.0")
    assert (manifest.source.kind, manifest.source.quantisation) == ("gguf", "Q4_1 (14), Q8_0 (1)")
    numerics = manifest.numerics
    assert (numerics.weights, numerics.kv_cache, numerics.activations) == (
        choice.weights,
        choice.kv_cache,
        choice.activations,
    )
    assert numerics.golden_reference.startswith("numpy")
    assert numerics.golden_positions == 24
    assert numerics.golden_argmax_agreement >= 0.85
    assert 0 < numerics.golden_mean_difference <= numerics.golden_max_difference
    assert numerics.batch_invariant is (choice.kv_cache == choice.activations == "f32")
    assert numerics.tolerance >= 1e-3
    assert manifest.profile.fixed + manifest.profile.per_decode > 0
    assert manifest.model.parameters == describe(GgufCheckpoint(model)).parameters()
    assert inspect_engine(tmp_path / "engine").servable


def test_the_same_input_builds_nothing(model: Path, tmp_path: Path) -> None:
    assert not planned(model, tmp_path / "engine").up_to_date()
    built(model, tmp_path / "engine")
    assert planned(model, tmp_path / "engine").up_to_date()
    assert not planned(model, tmp_path / "engine", numerics_choice("f32")).up_to_date()
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=1)
    assert not planned(other, tmp_path / "engine").up_to_date()
    (tmp_path / "engine" / "model.bin").write_bytes(b"\0" * (tmp_path / "engine" / "model.bin").stat().st_size)
    assert not planned(model, tmp_path / "engine").up_to_date()


def test_equal_builds_give_equal_bytes(model: Path, tmp_path: Path) -> None:
    built(model, tmp_path / "one")
    built(model, tmp_path / "two")
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert [name for name in one if one[name] != two[name]] == [MANIFEST_NAME]


def test_case_A11_a_build_killed_anywhere_leaves_nothing_that_serves(model: Path, tmp_path: Path) -> None:
    whole = run_build(model, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    operations = int(whole.stdout)
    # All over the work, and each of the last ones, where the engine is put in place.
    places = sorted({*range(1, operations, operations // 7), *range(operations - 3, operations + 1)})
    for place in places:
        target = tmp_path / f"engine-{place}"
        assert run_build(model, target, "--kill-at", str(place)).returncode == -9
        assert not target.exists() or is_intact(target, planned(model, target).fingerprint)
        assert run_build(model, target).returncode == 0
        assert is_intact(target, planned(model, target).fingerprint)
        built_anew, resumed = contents(tmp_path / "whole"), contents(target)
        assert all(built_anew[name] == resumed[name] for name in ("model.bin", "model.xml", "tokenizer.json"))
        assert sorted(path.name for path in tmp_path.iterdir() if target.name in path.name) == [
            f".{target.name}.lock",
            target.name,
        ]


def test_case_A11_a_rebuild_killed_anywhere_leaves_the_old_engine_or_the_new(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "engine"
    old = built(model, target, numerics_choice("f32")).fingerprint
    new = planned(model, target).fingerprint
    kept = contents(target)
    operations = int(run_build(model, tmp_path / "whole").stdout)
    for place in range(operations - 2, operations + 2):
        run_build(model, target, "--kill-at", str(place))
        assert is_intact(target, old) or is_intact(target, new)
        shutil.rmtree(target)
        target.mkdir()
        for name, content in kept.items():
            (target / name).write_bytes(content)


def test_builds_at_once_do_not_harm_each_other(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.build.watched_build", str(model), str(tmp_path / "engine")]
    running = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in "abc"
    ]
    outcomes = [(process.communicate(), process.returncode) for process in running]
    assert 0 in [code for _, code in outcomes]
    assert all(code == 0 or "another build of this engine is running" in errors for (_, errors), code in outcomes)
    assert is_intact(tmp_path / "engine", planned(model, tmp_path / "engine").fingerprint)


@pytest.mark.parametrize("limit", [0, 1000, 40_000])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(limit: int, model: Path, tmp_path: Path) -> None:
    outcome = run_build(model, tmp_path / "out" / "engine", "--file-limit", str(limit))
    assert outcome.returncode == 1, outcome.stderr
    assert "disk" in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".engine.lock"]


def test_case_A5_too_little_memory_is_refused_before_work(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(model, tmp_path / "engine")
    monkeypatch.setattr(host, "available_memory", lambda: plan.bill.build_memory - 10**6)
    with pytest.raises(BuildError, match=r"needs (\d+) MB of memory and \d+ MB are available; --force"):
        build(plan, SilentReporter())
    assert not (tmp_path / "engine").exists()
    build(plan, SilentReporter(), force=True)
    assert (tmp_path / "engine").exists()


def test_too_little_disk_is_refused_before_work(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(PublishError, match=r"needs 12 MB of disk and .* has 1 MB left"):
        built(model, tmp_path / "engine")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda writer: writer.add_sliding_window(64), "sliding_window = 64 is not implemented"),
        (lambda writer: writer.add_expert_count(8), "expert_count = 8 is not implemented"),
        (lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE), "longrope"),
        (
            lambda writer: writer.add_tensor("blk.0.attn_sinks.weight", np.zeros(2, np.float32)),
            r"tensor blk\.0\.attn_sinks\.weight has no place",
        ),
    ],
    ids=["window", "experts", "scaling", "tensor"],
)
def test_what_is_not_implemented_is_refused_by_name(edit: object, says: str, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", edit=edit)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=says):
        planned(path, tmp_path / "engine")


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        tokens = writer.kv_data[0]["tokenizer.ggml.tokens"]
        types = writer.kv_data[0]["tokenizer.ggml.token_type"]
        tokens.value = [*tokens.value, "one", "more"]
        types.value = [*types.value, 1, 1]

    path = write_tiny_gguf(tmp_path / "tiny.gguf", edit=edit)
    with pytest.raises(CheckpointError, match="the tokenizer has 269 tokens, the embedding has 267 rows"):
        planned(path, tmp_path / "engine")


def test_numerics_that_cannot_run_together_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="--kv-cache bf16 needs --activations bf16"):
        numerics_choice(kv_cache="bf16")
