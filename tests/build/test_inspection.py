"""Inspection finds what keeps a machine from serving an engine, and names it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import openvino as ov
import pytest

from build_scripts import inspection
from build_scripts.inspection import inspect_engine, is_intact
from build_scripts.publish import list_files
from engines.contract import EngineLoadError
from engines.manifest import MANIFEST_NAME, EngineManifest
from engines.openvino.fitness import openvino_version
from tests.build.manifests import make_manifest


def write(directory: Path, manifest: EngineManifest) -> Path:
    (directory / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))
    return directory


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    (tmp_path / "model.bin").write_bytes(b"weights")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    return write(tmp_path, make_manifest(list_files(tmp_path), openvino=openvino_version()))


def changed(engine: Path, **fields: object) -> Path:
    manifest = inspect_engine(engine).manifest
    return write(engine, msgspec.structs.replace(manifest, **fields))


def only_problem(engine: Path) -> str:
    (problem,) = inspect_engine(engine).problems
    return problem


def test_a_sound_engine_is_servable(engine: Path) -> None:
    found = inspect_engine(engine)
    assert found.servable
    assert found.problems == ()
    assert is_intact(engine, "f" * 64)
    assert not is_intact(engine, "e" * 64)


def test_a_missing_file(engine: Path) -> None:
    (engine / "tokenizer.json").unlink()
    assert only_problem(engine).startswith("tokenizer.json is missing: build it again")
    assert not is_intact(engine, "f" * 64)


def test_a_short_file(engine: Path) -> None:
    (engine / "model.bin").write_bytes(b"weight")
    assert only_problem(engine).startswith("model.bin has 6 bytes, the manifest says 7")


def test_a_changed_byte(engine: Path) -> None:
    (engine / "model.bin").write_bytes(b"weighty"[:7])
    assert "its sha256 differs" in only_problem(engine)
    assert not is_intact(engine, "f" * 64)


def test_case_A1_another_version_of_the_library_is_named_with_the_way_out(engine: Path) -> None:
    problem = only_problem(changed(engine, tools={"openvino": "2020.1.0"}))
    assert "built with openvino 2020.1.0" in problem
    assert f"this machine has openvino {openvino_version()}" in problem
    assert "firsttoken build" in problem


def test_a_cpu_without_bf16(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        def get_property(self, device: str, name: str) -> list[str]:
            return ["FP32", "INT8"]

    monkeypatch.setattr(ov, "Core", Plain)
    numerics = msgspec.structs.replace(inspect_engine(engine).manifest.numerics, activations="bf16", kv_cache="bf16")
    assert "no bf16 instructions" in only_problem(changed(engine, numerics=numerics))


def test_case_B1_memory_for_one_longest_sequence(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "available_memory", lambda: 100_000_000)
    problem = only_problem(engine)
    assert "needs 220 MB loaded" in problem
    assert "one sequence of 256 tokens" in problem
    assert "100 MB are available" in problem


def test_another_machines_step_times_are_worth_a_note(engine: Path) -> None:
    assert any("first guess" in note for note in inspect_engine(engine).notes)


def test_an_engine_without_golden_data_says_so(engine: Path) -> None:
    numerics = msgspec.structs.replace(inspect_engine(engine).manifest.numerics, golden_reference="numpy 2.4.6")
    assert any("no golden data" in note for note in inspect_engine(changed(engine, numerics=numerics)).notes)


@pytest.mark.parametrize("document", [b"", b"{}", b'{"schema_version": 99}', b"\xff\x00"])
def test_what_is_no_manifest_is_refused(document: bytes, engine: Path) -> None:
    (engine / MANIFEST_NAME).write_bytes(document)
    with pytest.raises(EngineLoadError, match=MANIFEST_NAME):
        inspect_engine(engine)
    assert not is_intact(engine, "f" * 64)


def test_case_A11_a_directory_without_a_manifest_is_no_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match="firsttoken build"):
        inspect_engine(tmp_path)
