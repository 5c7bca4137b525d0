"""The probe notices whatever differs, and nothing else. It is held against the contract fake: against the library only a GPU machine can."""

from __future__ import annotations

import types
from typing import Any

import pytest

from engines.contract import EngineLoadError
from engines.trtllm.probe import differences, require_expected
from tests.trtllm.fake_site.tensorrt_llm.bindings import executor as fake


def changed(**names: Any) -> types.ModuleType:
    """The fake with some of its names replaced; None takes a name away."""
    module = types.ModuleType("changed")
    module.__dict__.update({name: value for name, value in vars(fake).items() if not name.startswith("__")} | names)
    for name in [name for name, value in names.items() if value is None]:
        delattr(module, name)
    return module


def test_the_expected_library_has_no_differences() -> None:
    assert differences(fake) == []
    require_expected(fake)


def test_a_missing_class_a_missing_method_and_a_missing_member_are_named() -> None:
    class Executor:
        enqueue_requests = await_responses = cancel_request = can_enqueue_requests = shutdown = None

    class FinishReason:
        END_ID = STOP_WORDS = LENGTH = NOT_FINISHED = CANCELLED = 0

    module = changed(LoraConfig=None, Executor=Executor, FinishReason=FinishReason)
    found = differences(module)
    assert "LoraConfig is missing" in found
    assert "Executor.get_latest_iteration_stats is missing" in found
    assert "FinishReason.TIMED_OUT is missing" in found


def test_a_parameter_that_is_not_taken_is_named_with_the_librarys_words() -> None:
    class OutputConfig:
        def __init__(self, *, return_log_probs: bool = False, exclude_input_from_output: bool = False) -> None: ...

    found = differences(changed(OutputConfig=OutputConfig))
    assert len(found) == 1
    assert found[0].startswith("OutputConfig does not take return_perf_metrics: ")
    assert "return_perf_metrics" in found[0]


def test_a_type_that_changed_is_noticed_by_constructing() -> None:
    class Request(fake.Request):
        def __post_init__(self) -> None:
            given: object = self.allotted_time_ms
            if given is not None and not isinstance(given, int):
                raise TypeError("incompatible function arguments: allotted_time_ms: int")

    found = differences(changed(Request=Request))
    assert found == ["Request does not take allotted_time_ms: incompatible function arguments: allotted_time_ms: int"]


def test_an_attribute_that_would_set_nothing_is_noticed() -> None:
    class ExtendedRuntimePerfKnobConfig:
        def __init__(self, multi_block_mode: bool = True, enable_context_fmha_fp32_acc: bool = False) -> None: ...

    found = differences(changed(ExtendedRuntimePerfKnobConfig=ExtendedRuntimePerfKnobConfig))
    assert found == [
        "ExtendedRuntimePerfKnobConfig has no attribute cuda_graph_mode to set",
        "ExtendedRuntimePerfKnobConfig has no attribute cuda_graph_cache_size to set",
    ]


def test_a_start_fails_with_the_whole_list() -> None:
    with pytest.raises(
        EngineLoadError, match=r"LoraConfig is missing.*Request does not take lora_config.*tensorrt-llm==1\.2\.1"
    ):
        require_expected(changed(LoraConfig=None))
