"""Every mismatch of manifest and machine is one sentence with both values and what mends it; a machine that fits has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.contract import EngineLoadError
from engines.trtllm.adapters import find_adapters
from engines.trtllm.facts import TensorRtFacts
from engines.trtllm.machine import Gpu, Machine, parse_gpus
from engines.trtllm.preflight import checks, mismatches
from engines.trtllm.settings import ExecutorSettings, kv_tokens
from tests.trtllm.engines import FACTS, GIB, HERE, make_adapter, make_engine, write_manifest

SETTINGS = ExecutorSettings()


def facts(**changes: Any) -> TensorRtFacts:
    return msgspec.structs.replace(FACTS, **changes)


def machine(**changes: Any) -> Machine:
    values = {name: getattr(HERE, name) for name in Machine.__dataclass_fields__} | changes
    return Machine(**values)


def problems(directory: Path, built: TensorRtFacts = FACTS, here: Machine = HERE, **settings: Any) -> list[str]:
    manifest = make_engine(directory, built)
    return mismatches(directory, manifest, here, ExecutorSettings(**settings))


@pytest.mark.parametrize(
    ("built", "made", "words"),
    [
        (facts(), {"rank": 8}, ["engine.adapters has formal", "compiled without adapters", "--lora-rank"]),
        (facts(max_lora_rank=8), {"rank": 16}, ["formal has rank 16", "at most 8", "--lora-rank 16"]),
        (
            facts(max_lora_rank=8),
            None,
            ["formal lacks model.lora_weights.npy and model.lora_config.npy", "hf_lora_convert.py"],
        ),
        (facts(max_lora_rank=8), {}, []),
    ],
    ids=["no-adapters", "rank", "files", "fits"],
)
def test_adapters_that_do_not_fit_the_engine(
    tmp_path: Path, built: TensorRtFacts, made: dict[str, int] | None, words: list[str]
) -> None:
    place = tmp_path / "adapters" / "formal"
    if made is None:
        place.mkdir(parents=True)
    else:
        make_adapter(place, **made)
    said = problems(tmp_path / "engine", built, adapters=find_adapters(str(tmp_path / "adapters")))
    assert len(said) == (1 if words else 0)
    assert all(word in said[0] for word in words)


def test_a_machine_that_fits_has_nothing_to_say(tmp_path: Path) -> None:
    assert problems(tmp_path) == []


H100 = HERE.gpus[0]
CASES: dict[str, tuple[TensorRtFacts, Machine, dict[str, Any], list[str]]] = {
    "library": (
        FACTS,
        machine(tensorrt_llm="1.1.0"),
        {},
        ["TensorRT-LLM 1.2.1", "1.1.0", "pip install tensorrt-llm==1.2.1"],
    ),
    "library-missing": (
        FACTS,
        machine(tensorrt_llm=None, tensorrt=None),
        {},
        ["TensorRT-LLM 1.2.1 is not installed", "pip install"],
    ),
    "tensorrt": (FACTS, machine(tensorrt="10.13.3.9"), {}, ["TensorRT 10.14.1.48", "10.13.3.9", "firsttoken rebuild"]),
    "cuda": (FACTS, machine(cuda="12.9.1"), {}, ["CUDA 13.0.3", "12.9.1", "firsttoken rebuild"]),
    "driver": (FACTS, machine(driver="535.104.05"), {}, ["580 or later", "535.104.05", "cuda-compat"]),
    "driver-missing": (FACTS, machine(driver=None), {}, ["no GPU driver", "--gpus all"]),
    "ranks": (facts(tp=2, pp=2), HERE, {}, ["engine needs tp=2·pp=2, so 4 GPUs, found 2", "--tp 2"]),
    "mpirun": (FACTS, machine(mpirun=None), {}, ["mpirun is not on PATH", "openmpi-bin"]),
    "architecture": (
        facts(compute_capability="8.9", gpu_name="NVIDIA L40S"),
        HERE,
        {},
        ["compute capability 8.9 (NVIDIA L40S)", "NVIDIA H100 80GB HBM3 of 9.0", "firsttoken rebuild"],
    ),
    "second-gpu-differs": (
        facts(tp=2),
        machine(gpus=(H100, Gpu("NVIDIA L40S", "8.9", 80 * GIB))),
        {},
        ["GPU 1 here is a NVIDIA L40S of 8.9"],
    ),
    "memory": (
        FACTS,
        machine(gpus=(Gpu(H100.name, "9.0", 40 * GIB),)),
        {},
        ["80.0 GiB", "40.0 GiB", "engine.kv_bytes"],
    ),
    "room": (
        FACTS,
        HERE,
        {"kv_bytes": 100_000},
        ["12 blocks of 8 tokens", "max_seq_len 256 needs 32", "engine.kv_bytes"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mismatch_is_one_sentence_with_both_values_and_the_mending(tmp_path: Path, name: str) -> None:
    """case_A1, case_A3, case_A4, case_B1."""
    built, here, settings, words = CASES[name]
    (problem,) = problems(tmp_path, built, here, **settings)
    assert "\n" not in problem
    for word in words:
        assert word in problem


def test_limits_that_differ_from_config_json_are_all_named(tmp_path: Path) -> None:
    manifest = make_engine(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    document["build_config"]["max_batch_size"] = 4
    document["pretrained_config"]["mapping"]["tp_size"] = 2
    document["build_config"]["plugin_config"]["use_paged_context_fmha"] = False
    document["version"] = "1.1.0"
    (tmp_path / "config.json").write_text(json.dumps(document))
    limits = next(check for check in checks(tmp_path, manifest, HERE, SETTINGS) if check.name == "limits")
    assert limits.problem is not None
    for words in (
        "version (1.1.0 and 1.2.1)",
        "tp_size (2 and 1)",
        "max_batch_size (4 and 8)",
        "use_paged_context_fmha (False and True)",
    ):
        assert words in limits.problem


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": "1.2.1"}'])
def test_a_damaged_config_json_is_said_not_raised(tmp_path: Path, text: str) -> None:
    manifest = make_engine(tmp_path)
    (tmp_path / "config.json").write_text(text)
    found = mismatches(tmp_path, manifest, HERE, SETTINGS, hashes=False)
    assert any("config.json cannot be read" in problem for problem in found)


def test_missing_cut_and_changed_rank_files_are_told_apart(tmp_path: Path) -> None:
    manifest = make_engine(tmp_path, facts(tp=2))
    (tmp_path / "rank0.engine").write_text("fake plan X")
    (tmp_path / "rank1.engine").write_text("fak")
    found = mismatches(tmp_path, manifest, HERE, SETTINGS)
    assert [problem.split(" has ")[0] for problem in found] == ["rank0.engine", "rank1.engine"]
    assert "sha256" in found[0]
    assert "3 bytes, engine.json says 11" in found[1]
    (tmp_path / "rank1.engine").unlink()
    found = mismatches(tmp_path, manifest, HERE, SETTINGS, hashes=False)
    assert found == [
        f"rank1.engine is missing, engine.json says 11 bytes: copy the engine again, or build it again with `firsttoken rebuild {tmp_path}` on this machine"
    ]


def test_a_rank_that_the_manifest_does_not_name_is_missed(tmp_path: Path) -> None:
    manifest = make_engine(tmp_path, facts(tp=2))
    fewer = msgspec.structs.replace(manifest, files=tuple(one for one in manifest.files if one.name != "rank1.engine"))
    assert "engine.json names no rank1.engine" in mismatches(tmp_path, fewer, HERE, SETTINGS)[0]


def test_a_manifest_without_facts_is_refused(tmp_path: Path) -> None:
    manifest = msgspec.structs.replace(make_engine(tmp_path), trtllm=None)
    write_manifest(tmp_path, manifest)
    with pytest.raises(EngineLoadError, match="no trtllm section"):
        mismatches(tmp_path, manifest, HERE, SETTINGS)


def test_the_pool_by_hand() -> None:
    """0.9 * 80 GiB - 16 GiB - 1 GiB = 55 GiB; a block of 8 tokens of 1024 bytes takes 8 KiB."""
    assert kv_tokens(FACTS, SETTINGS) == 55 * GIB // (8 * 1024) * 8
    assert kv_tokens(FACTS, ExecutorSettings(kv_bytes=32 * 8 * 1024 + 5)) == 256


def test_what_nvidia_smi_says() -> None:
    driver, gpus = parse_gpus("NVIDIA L40S, 8.9, 46068, 580.95.05\nNVIDIA L40S, 8.9, 46068, 580.95.05\n")
    assert driver == "580.95.05"
    assert gpus == (Gpu("NVIDIA L40S", "8.9", 46068 << 20),) * 2
    assert parse_gpus("") == (None, ())
    with pytest.raises(EngineLoadError, match="expected name,compute_cap"):
        parse_gpus("NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.")
