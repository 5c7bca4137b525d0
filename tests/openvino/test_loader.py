from __future__ import annotations

import shutil
import subprocess
import sys
from array import array
from pathlib import Path

import msgspec
import openvino as ov
import openvino.opset13 as ops
import pytest

from engines.contract import EngineLoadError, EngineMemoryError, Row, Sample, StepPlan
from engines.manifest import MANIFEST_NAME, EngineManifest, FileEntry
from engines.openvino import load, loader
from engines.openvino.graph import fix_to_one_token, page
from engines.openvino.kv_memory import KvMemory
from engines.openvino.memory_need import ONE_TOKEN_BYTES, RUNTIME_BYTES, loaded_bytes
from engines.openvino.session import rehearsal
from tests.conformance.tiny_model import add_wide_form
from tests.openvino.tiny_engine import directory, spec, tiny_runner, tokens, with_numerics

BLOCK_BYTES = 3 * 2 * (2 * 32 * 32 * 4)
"""3 layers, keys and values, 2 heads of 32 times 32 tokens, 4 bytes."""


def copy_engine(target: Path, **changes: object) -> Path:
    """The tiny engine with another manifest."""
    shutil.copytree(directory(), target)
    manifest: EngineManifest = msgspec.structs.replace(with_numerics(), **changes)
    (target / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))
    return target


def test_importing_the_package_loads_no_library() -> None:
    """`firsttoken --help` must not pay for engines."""
    code = "import sys, engines.openvino; sys.exit('openvino' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_loading_tells() -> None:
    runner = tiny_runner()
    limits, timings = runner.limits, runner.load_timings
    assert (limits.vocab_size, limits.block_size, limits.block_count, limits.max_context) == (512, 32, 24, 512)
    assert (limits.max_rows, limits.max_step_tokens) == (8, 160)
    assert limits.bytes_per_block == BLOCK_BYTES
    assert [(group.layers, group.window, group.bytes_per_token) for group in limits.kv_groups] == [
        ((0, 1, 2), None, BLOCK_BYTES // 32)
    ]
    assert min(timings.preflight_seconds, timings.read_seconds, timings.transform_seconds, timings.compile_seconds) > 0
    assert runner.manifest == with_numerics()
    assert runner.capabilities.batch_invariant
    runner.close()


def test_block_size_is_that_of_tokens_where_keys_are_quantised_by_channel() -> None:
    runner = tiny_runner(with_numerics(kv_cache="u8"))
    assert runner.limits.block_size == 32
    assert runner.limits.bytes_per_block == 3 * 2 * (40 * 32 + 32 * 40)
    runner.close()


def test_memory_is_given_in_bytes_or_blocks() -> None:
    runner = load(directory(), kv_bytes=10 * BLOCK_BYTES + 1, threads=1)
    assert runner.limits.block_count == 10
    runner.close()
    with pytest.raises(EngineLoadError, match=f"kv_bytes: must hold one block of {BLOCK_BYTES} bytes at least, got 17"):
        load(directory(), kv_bytes=17, threads=1)


def test_memory_that_is_not_there_is_refused_at_once() -> None:
    """case_B2, case_B3: with the numbers that say why."""
    with pytest.raises(
        EngineLoadError, match=rf"kv memory: {10**9} blocks of {BLOCK_BYTES} bytes need \d+ bytes, \d+ are"
    ):
        load(directory(), kv_blocks=10**9, threads=1)


def test_the_whole_engine_is_billed_before_a_weight_is_read_case_B2_B3(monkeypatch: pytest.MonkeyPatch) -> None:
    """A swap loads beside an engine that serves: what both need together must be there."""
    weights = sum(entry.bytes for entry in with_numerics().files if entry.name.endswith(".bin"))
    need = RUNTIME_BYTES + 2 * weights + 10 * BLOCK_BYTES
    assert need == loaded_bytes(with_numerics()) + 10 * BLOCK_BYTES

    def never(core: ov.Core, path: Path) -> ov.Model:
        raise AssertionError(path)

    with monkeypatch.context() as patched:
        patched.setattr(loader, "available_memory", lambda: need - 1)
        patched.setattr(loader, "_read", never)
        with pytest.raises(
            EngineMemoryError, match=r"memory: .* needs 22\d MB loaded and 0 MB .* together; 22\d MB are"
        ):
            load(directory(), kv_bytes=10 * BLOCK_BYTES, threads=1)
    with monkeypatch.context() as patched:
        patched.setattr(loader, "available_memory", lambda: need)
        load(directory(), kv_bytes=10 * BLOCK_BYTES, threads=1).close()


def test_default_memory_is_bounded() -> None:
    runner = load(directory(), threads=1)
    assert 1 <= runner.limits.block_count <= (1 << 30) // BLOCK_BYTES
    runner.close()


@pytest.mark.parametrize("name", ["kv_bytes", "kv_blocks", "max_rows", "max_step_tokens"])
def test_numbers_must_be_positive(name: str) -> None:
    with pytest.raises(EngineLoadError, match=f"{name}: must be at least 1, got 0"):
        load(directory(), **{name: 0})  # type: ignore[arg-type] # one of the int parameters


def test_no_engine_there(tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match="no such file, so this is no engine"):
        load(tmp_path)


def test_a_manifest_that_is_none(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text("{}")
    with pytest.raises(EngineLoadError, match="missing required field"):
        load(tmp_path)


def test_a_manifest_of_another_version_is_known_by_its_version_whatever_else_it_has(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_text('{"schema_version": 99, "shape": "unheard of"}')
    with pytest.raises(
        EngineLoadError, match="schema_version must be 1, got 99: build it again with `firsttoken build`"
    ):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 99}, "schema_version must be 1, got 99"),
        ({"engine": "trtllm"}, "engine must be openvino, got 'trtllm'"),
        ({"model": msgspec.structs.replace(with_numerics().model, vocab_size=600)}, "says vocab_size 600, got 512"),
        ({"model": msgspec.structs.replace(with_numerics().model, layers=4)}, "says 4 layers, got 3"),
        ({"tools": {"openvino": "2019.1.0"}}, "built with openvino 2019.1.0 .*: build it again"),
        (
            {"files": (FileEntry("model.bin", 7, "00"),)},
            r"model.bin has \d+ bytes, the manifest says 7: build it again",
        ),
        ({"files": (FileEntry("absent", 7, "00"),)}, "absent is missing: build it again"),
    ],
)
def test_a_manifest_that_does_not_fit_case_A1(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(EngineLoadError, match=message):
        load(copy_engine(tmp_path / "engine", **changes), threads=1)


def test_a_damaged_graph(tmp_path: Path) -> None:
    damaged = copy_engine(tmp_path / "engine")
    xml = damaged / "model.xml"
    document = xml.read_bytes()
    xml.write_bytes(document[:-2000] + b" " * 2000)
    with pytest.raises(EngineLoadError, match=r"model.xml: cannot be read") as refusal:
        load(damaged)
    assert isinstance(refusal.value.__cause__, RuntimeError)


def test_two_forms_are_loaded_only_where_the_manifest_says_so(tmp_path: Path) -> None:
    engine = copy_engine(tmp_path / "engine", numerics=with_numerics(wide_weights="bf16").numerics)
    with pytest.raises(EngineLoadError, match=r"wide.xml: cannot be read"):
        load(engine, threads=1)
    add_wide_form(engine)
    load(engine, kv_blocks=4, threads=1).close()


def test_two_forms_are_billed_with_the_codes_packed_twice() -> None:
    files = (FileEntry("model.bin", 1000, "00"), FileEntry("wide.bin", 4000, "00"), FileEntry("model.xml", 7, "00"))
    one, two = (
        loaded_bytes(msgspec.structs.replace(with_numerics(wide_weights=wide), files=files)) for wide in ("", "bf16")
    )
    assert (one - RUNTIME_BYTES, two - one) == (2 * 5000, 1000 + ONE_TOKEN_BYTES)


def test_each_step_runs_in_the_form_for_its_number_of_tokens(tmp_path: Path) -> None:
    """And gives what one form for all gives, bit for bit: here all three hold the same float32 matrices."""
    engine = copy_engine(tmp_path / "engine", numerics=with_numerics(wide_weights="bf16").numerics)
    add_wide_form(engine)
    single, several = tiny_runner(), load(engine, kv_blocks=24, threads=1, max_rows=8, max_step_tokens=160)
    prompt, table = tokens(9), (array("i", [3]),)
    told = []
    for step, (begin, end) in enumerate([(0, 1), (1, 2), (2, 4), (4, 8), (8, 9)]):
        want = None if step in (0, 2) else Sample()
        row = Row(1, prompt[begin:end], begin, table, want)
        plan = StepPlan(step, [row], opened=[] if step else [spec(1)])
        results = [runner.start(plan).result() for runner in (single, several)]
        assert results[0].outputs == results[1].outputs
        session = several._session
        assert session is not None
        told.append(session._forms.index(session._running))
    assert told == [0, 0, 1, 2, 0]
    single.close()
    several.close()


def test_every_form_has_run_before_the_engine_is_given_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsed: list[int] = []

    def spied(compiled: ov.CompiledModel, memory: KvMemory, count: int) -> None:
        assert memory.block_count == 1
        rehearsal(compiled, memory, count)
        rehearsed.append(count)

    monkeypatch.setattr(loader, "rehearsal", spied)
    engine = copy_engine(tmp_path / "engine", numerics=with_numerics(wide_weights="bf16").numerics)
    add_wide_form(engine)
    load(engine, kv_blocks=4, threads=1).close()
    assert rehearsed == [1, 2, 3]


def test_a_form_that_cannot_run_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(loader, "rehearsal", fails)
    with pytest.raises(EngineLoadError, match=r"model.xml: its first step failed: no such kernel"):
        tiny_runner()


def test_a_graph_that_takes_no_fixed_shape_is_refused() -> None:
    ids = ops.parameter([-1, 4], ov.Type.i64, name="input_ids")
    ids.output(0).set_names({"input_ids"})
    with pytest.raises(EngineLoadError, match=r"model.xml: cannot be fixed to one token a step"):
        fix_to_one_token(ov.Model([ops.result(ops.convert(ids, "f32"))], [ids], "none"))


def test_a_wide_form_of_another_model_is_refused(tmp_path: Path) -> None:
    engine = copy_engine(tmp_path / "engine", numerics=with_numerics(wide_weights="bf16").numerics)
    add_wide_form(engine, heads_for_keys=4)
    with pytest.raises(EngineLoadError, match=r"wide.xml: its key_cache is laid out otherwise than that of model.xml"):
        load(engine, kv_blocks=4, threads=1)


def test_a_graph_without_attention_is_refused() -> None:
    ids = ops.parameter([-1, -1], ov.Type.i64, name="input_ids")
    with pytest.raises(EngineLoadError, match=r"model.xml: "):
        page(ov.Model([ops.result(ops.convert(ids, "f32"))], [ids], "none"))
