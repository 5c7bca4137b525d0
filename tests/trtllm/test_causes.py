"""Every known text of the library leads to its cause, names the values, and reads like help."""

from __future__ import annotations

import pytest

from engines.trtllm.causes import CAUSES, explain, find_cause

SAID = {
    "stub-package": ("This is a special placeholder package which downloads a real wheel package", "pypi.nvidia.com"),
    "gpu-architecture": (
        (
            "[TRT] [E] IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is generated on an "
            "incompatible device, expecting compute 8.6 got compute 8.0, please rebuild.)"
        ),
        "compute capability 8.6, this GPU has 8.0",
    ),
    "tensorrt-version": (
        (
            "Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current Version: "
            "228, Serialized Engine Version: 237"
        ),
        "format 237, this one reads 228",
    ),
    "mpi-world": (
        "[ERROR] MPI size 4 != TP size 2 * PP size 1 * CP Size 1",
        "4 ranks were started for an engine of tp 2",
    ),
    "mpi-world-unspecified": (
        "Assertion failed: MPI worldSize is expected to be equal to tp*pp when participantIds are not specified",
        "`firsttoken serve ENGINE`",
    ),
    "tp-conflict": ("tp_size 4 is not consistent with the engine's tp_size 2", "--tp 4"),
    "too-few-gpus": ("RuntimeError: Only 1 GPUs are available, but 2 are required.", "needs 2 GPUs and 1 can be seen"),
    "too-few-gpus-log": ("gpusPerNode is 8 and mpiSize is 8, but only 4 GPUs detected", "--tp 4"),
    "wrong-ranks": (
        "Cannot instantiate Generator for engine built for 2 ranks, while currently running on 1 ranks.",
        "compiled for 2 ranks and runs on 1",
    ),
    "no-config": (
        "Failed to infer model format because no config.json exists in /models/x",
        "/models/x holds no config.json",
    ),
    "bad-config": (
        "Inferred model format TLLM_ENGINE, but failed to load config.json: Expecting value",
        "Expecting value",
    ),
    "too-long": (
        "The sum of prompt length (8000.0) and query length (0) max_tokens (500) should not exceed max_seq_len (8192)",
        "max_seq_len 8192",
    ),
    "kv-memory": ("[ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory", "engine.kv_bytes"),
    "adapter-not-cached": (
        "LoRA task 3 not found in cache. Please send LoRA weights with request",
        "adapter 3 (counted from 1, by name)",
    ),
    "adapter-cache-full": ("PEFT Cache is full. Could not store taskId=4", "have fewer in engine.adapters"),
    "shutting-down": ("RuntimeError: LLM is shutting down", "takes nothing any more"),
    "shared-python": (
        "ImportError: libpython3.12.so.1.0: cannot open shared object file: No such file or directory",
        "libpython3.12",
    ),
    "missing-library": (
        "ImportError: libnvinfer_plugin_tensorrt_llm.so: cannot open shared object file: No such file",
        "libnvinfer_plugin_tensorrt_llm.so",
    ),
    "worker-died": ("RuntimeError: Executor worker died during initialization", "lines above it"),
    "build-failed": ("AssertionError: Engine building failed, please check error log.", "lines above it"),
    "no-workers": ("ValueError: max_workers must be greater than 0", "found no GPU"),
    "deserialise": ("RuntimeError: Assertion failed: Failed to deserialize cuda engine", "`firsttoken inspect ENGINE`"),
}


def test_every_cause_has_its_text_here() -> None:
    assert {cause.key for cause in CAUSES} == SAID.keys()


@pytest.mark.parametrize("key", SAID)
def test_a_text_leads_to_its_own_cause_and_to_help_case_a2(key: str) -> None:
    text, words = SAID[key]
    found = find_cause([text])
    assert found is not None
    assert found[0].key == key
    assert words in found[1]
    assert "{" not in found[1]


def test_the_log_line_that_tells_wins_over_the_generic_exception_case_a1_a3() -> None:
    log = ["[TRT-LLM] [I] loading", SAID["gpu-architecture"][0], "[TRT-LLM] [E] traceback"]
    said = explain("Assertion failed: Failed to deserialize cuda engine (/src/tllmRuntime.cpp:71)\n1  0x7f", log)
    assert said.startswith(
        "the engine was compiled for GPUs of compute capability 8.6, this GPU has 8.0: compile it again"
    )
    assert said.endswith(
        "(TensorRT-LLM: Assertion failed: Failed to deserialize cuda engine (/src/tllmRuntime.cpp:71))"
    )


def test_what_nobody_knows_is_passed_on_as_it_is() -> None:
    assert explain("something new\nwith a traceback") == "something new"
    assert explain("  ") == "no reason was given"
