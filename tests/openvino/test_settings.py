from __future__ import annotations

import msgspec
import pytest

from engines.contract import EngineLoadError
from engines.manifest import Numerics
from engines.openvino.settings import compile_properties
from tests.openvino.tiny_engine import with_numerics


def numerics(**changes: object) -> Numerics:
    changed: Numerics = msgspec.structs.replace(with_numerics().numerics, **changes)
    return changed


def test_nothing_numeric_is_left_to_the_machine() -> None:
    properties = compile_properties(numerics(kv_cache="u8", dynamic_quantisation=False), threads=3)
    assert properties == {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "u8",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": "3",
    }


def test_dynamic_quantisation() -> None:
    properties = compile_properties(numerics(dynamic_quantisation=True, activations="bf16"), 1)
    assert properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "32"
    assert properties["INFERENCE_PRECISION_HINT"] == "bf16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_cache": "bf16"}, "kv_cache bf16 needs activations bf16, got f32"),
        ({"kv_cache": "fp8"}, r"numerics.kv_cache: must be one of u8, f16, bf16, f32, got 'fp8'"),
        ({"activations": "f16"}, r"numerics.activations: must be one of f32, bf16, got 'f16'"),
        ({"wide_weights": "f16"}, r"numerics.wide_weights: must be one of , bf16, got 'f16'"),
    ],
)
def test_numerics_that_cannot_run_are_refused_by_name(changes: dict[str, str], message: str) -> None:
    with pytest.raises(EngineLoadError, match=message):
        compile_properties(numerics(**changes), 1)


def test_bf16_keys_and_values_go_with_bf16_activations() -> None:
    assert compile_properties(numerics(kv_cache="bf16", activations="bf16"), 1)["KV_CACHE_PRECISION"] == "bf16"


def test_threads_must_be_positive() -> None:
    with pytest.raises(EngineLoadError, match="threads: must be at least 1, got 0"):
        compile_properties(numerics(), 0)


def test_further_properties_add_and_never_replace() -> None:
    assert compile_properties(numerics(), 1, {"ENABLE_CPU_PINNING": "NO"})["ENABLE_CPU_PINNING"] == "NO"
    with pytest.raises(
        EngineLoadError, match="properties: KV_CACHE_PRECISION is f32 by the manifest or an option, got 'u8'"
    ):
        compile_properties(numerics(), 1, {"KV_CACHE_PRECISION": "u8"})
