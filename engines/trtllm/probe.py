"""Holds every name and parameter that the adapter uses against the library that is installed, by constructing.

The table is what was read in public sources around release 1.2.1. A start that fails here has lost nothing: no weight was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from engines.contract import EngineLoadError
from engines.trtllm.native import PINNED, Bindings

Make = Callable[[Bindings], object]
"""A value for a parameter, made of other names of the library."""


@dataclass(frozen=True)
class Expected:
    """One class: ``required`` are positional, each of ``parameters`` must be taken by keyword, each of ``settings`` must be taken as an
    attribute of a made one and stay; ``attributes`` must be there. A dotted name is a class inside a class."""

    name: str
    required: tuple[object | Make, ...] = ()
    parameters: dict[str, object | Make] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    constructible: bool = True


def _enum(name: str, *members: str) -> Expected:
    return Expected(name, attributes=members, constructible=False)


def _made(name: str, *arguments: object | Make) -> Make:
    return lambda bindings: getattr(bindings, name)(*(_value(argument, bindings) for argument in arguments))


def _member(enum: str, member: str) -> Make:
    return lambda bindings: getattr(named(bindings, enum), member)


def named(bindings: Bindings, dotted: str) -> Any:  # noqa: ANN401 - the library ships no types
    """A class, or a class inside another: "GuidedDecodingParams.GuideType". Raises AttributeError."""
    found: Any = bindings
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


TIME = timedelta(milliseconds=50)
EXPECTED: tuple[Expected, ...] = (
    _enum("ModelType", "DECODER_ONLY"),
    _enum("GuidedDecodingConfig.GuidedDecodingBackend", "XGRAMMAR"),
    _enum("BatchingType", "INFLIGHT"),
    _enum("CapacitySchedulerPolicy", "GUARANTEED_NO_EVICT"),
    _enum("ContextChunkingPolicy", "FIRST_COME_FIRST_SERVED"),
    _enum("CommunicationType", "MPI"),
    _enum("CommunicationMode", "LEADER"),
    _enum("FinishReason", "NOT_FINISHED", "END_ID", "STOP_WORDS", "LENGTH", "TIMED_OUT", "CANCELLED"),
    Expected(
        "SchedulerConfig",
        parameters={
            "capacity_scheduler_policy": _member("CapacitySchedulerPolicy", "GUARANTEED_NO_EVICT"),
            "context_chunking_policy": _member("ContextChunkingPolicy", "FIRST_COME_FIRST_SERVED"),
        },
    ),
    Expected(
        "KvCacheConfig",
        parameters={
            "enable_block_reuse": True,
            "max_tokens": 1024,
            "max_attention_window": [1024],
            "free_gpu_memory_fraction": 0.9,
            "event_buffer_max_size": 0,
        },
    ),
    Expected("ParallelConfig", parameters={"communication_mode": _member("CommunicationMode", "LEADER")}),
    Expected(
        "ExtendedRuntimePerfKnobConfig",
        parameters={"multi_block_mode": True, "enable_context_fmha_fp32_acc": False},
        settings={"cuda_graph_mode": True, "cuda_graph_cache_size": 64},
    ),
    Expected(
        "GuidedDecodingConfig",
        required=(_member("GuidedDecodingConfig.GuidedDecodingBackend", "XGRAMMAR"),),
        parameters={"encoded_vocab": ["a", "b"], "tokenizer_str": "{}", "stop_token_ids": [1]},
    ),
    Expected(
        "ExecutorConfig",
        parameters={
            "max_beam_width": 1,
            "scheduler_config": _made("SchedulerConfig"),
            "kv_cache_config": _made("KvCacheConfig"),
            "enable_chunked_context": True,
            "iter_stats_max_iterations": 64,
            "request_stats_max_iterations": 0,
            "batching_type": _member("BatchingType", "INFLIGHT"),
            "max_batch_size": 8,
            "max_num_tokens": 512,
            "parallel_config": _made("ParallelConfig"),
            "peft_cache_config": _made("PeftCacheConfig"),
            "extended_runtime_perf_knob_config": _made("ExtendedRuntimePerfKnobConfig"),
            "guided_decoding_config": None,
        },
    ),
    Expected(
        "SamplingConfig",
        parameters={
            "beam_width": 1,
            "top_k": 4,
            "top_p": 0.9,
            "seed": 7,
            "temperature": 0.5,
            "min_tokens": 1,
            "repetition_penalty": 1.1,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.1,
            "no_repeat_ngram_size": 3,
            "num_return_sequences": 2,
            "min_p": 0.1,
        },
    ),
    Expected(
        "OutputConfig",
        parameters={"return_log_probs": True, "exclude_input_from_output": True, "return_perf_metrics": True},
    ),
    Expected("LoraConfig", required=(1,)),
    Expected(
        "PeftCacheConfig",
        parameters={
            "optimal_adapter_size": 8,
            "max_adapter_size": 64,
            "host_cache_size": 1 << 30,
            "lora_prefetch_dir": "/nowhere",
        },
    ),
    _enum("GuidedDecodingParams.GuideType", "JSON_SCHEMA", "REGEX", "EBNF_GRAMMAR"),
    Expected("GuidedDecodingParams", required=(_member("GuidedDecodingParams.GuideType", "REGEX"), "a+")),
    Expected(
        "KvCacheRetentionConfig",
        required=(lambda b: [b.KvCacheRetentionConfig.TokenRangeRetentionConfig(0, 8, 50, TIME)], 35),
        attributes=("TokenRangeRetentionConfig",),
    ),
    Expected(
        "Request",
        required=([1, 2, 3], 4),
        parameters={
            "streaming": True,
            "sampling_config": _made("SamplingConfig"),
            "output_config": _made("OutputConfig"),
            "end_id": 2,
            "pad_id": 2,
            "bad_words": [[5]],
            "stop_words": [[6, 7]],
            "embedding_bias": None,
            "lora_config": _made("LoraConfig", 1),
            "kv_cache_retention_config": None,
            "client_id": 9,
            "return_all_generated_tokens": False,
            "priority": 0.5,
            "guided_decoding_params": _made(
                "GuidedDecodingParams", _member("GuidedDecodingParams.GuideType", "REGEX"), "a+"
            ),
            "allotted_time_ms": TIME,
            "cache_salt_id": 3,
        },
    ),
    Expected(
        "Response",
        attributes=("request_id", "client_id", "has_error", "error_msg", "result"),
        constructible=False,
    ),
    Expected(
        "Result",
        attributes=(
            "is_final",
            "output_token_ids",
            "log_probs",
            "finish_reasons",
            "sequence_index",
            "is_sequence_final",
            "request_perf_metrics",
        ),
        constructible=False,
    ),
    Expected(
        "IterationStats",
        attributes=("iter", "num_active_requests", "num_queued_requests", "kv_cache_stats"),
        constructible=False,
    ),
    Expected(
        "KvCacheStats",
        attributes=("max_num_blocks", "used_num_blocks", "tokens_per_block", "reused_blocks", "missed_blocks"),
        constructible=False,
    ),
    Expected("kv_cache.KVCacheEvent", attributes=("event_id", "data", "window_size"), constructible=False),
    Expected("kv_cache.KVCacheStoredData", attributes=("blocks",), constructible=False),
    Expected("kv_cache.KVCacheStoredBlockData", attributes=("block_hash",), constructible=False),
    Expected("kv_cache.KVCacheRemovedData", attributes=("block_hashes",), constructible=False),
    Expected("kv_cache.KVCacheEventManager", attributes=("get_latest_events",), constructible=False),
    Expected(
        "Executor",
        attributes=(
            "get_kv_cache_event_manager",
            "enqueue_requests",
            "await_responses",
            "cancel_request",
            "get_latest_iteration_stats",
            "can_enqueue_requests",
            "shutdown",
        ),
        constructible=False,
    ),
)


def differences(bindings: Bindings, expected: tuple[Expected, ...] = EXPECTED) -> list[str]:
    """What the library does not have, or does not take, of what this adapter uses. Empty = all is as expected."""
    return [difference for one in expected for difference in _differences(bindings, one)]


def require_expected(bindings: Bindings) -> None:
    """Raises EngineLoadError listing every difference."""
    found = differences(bindings)
    if found:
        raise EngineLoadError(
            f"this TensorRT-LLM differs from the one that this adapter is written for ({PINNED}): {'; '.join(found)}. "
            f"Install tensorrt-llm=={PINNED}, or report the list"
        )


def _differences(bindings: Bindings, one: Expected) -> Iterator[str]:
    try:
        class_ = named(bindings, one.name)
    except AttributeError:
        yield f"{one.name} is missing"
        return
    for attribute in one.attributes:
        if not hasattr(class_, attribute):
            yield f"{one.name}.{attribute} is missing"
    if not one.constructible:
        return
    for name, value in [("", None), *one.parameters.items()]:
        problem = _problem(bindings, class_, one, name, value)
        if problem is not None:
            yield f"{one.name}{f' does not take {name}' if name else ' cannot be made'}: {problem}"
            if not name:
                return
    yield from _unsettable(bindings, class_, one)


def _unsettable(bindings: Bindings, class_: Callable[..., object], one: Expected) -> Iterator[str]:
    for name, value in one.settings.items():
        try:
            made = class_(*(_value(argument, bindings) for argument in one.required))
            # On the class: an attribute that an instance would merely carry along sets nothing in the library.
            if not hasattr(class_, name):
                yield f"{one.name} has no attribute {name} to set"
                continue
            setattr(made, name, value)
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            yield f"{one.name}.{name} cannot be set: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _problem(
    bindings: Bindings, class_: Callable[..., object], one: Expected, name: str, value: object | Make
) -> str | None:
    """None where the class is made with that parameter; without a name, with the required ones alone."""
    try:
        arguments = [_value(argument, bindings) for argument in one.required]
        class_(*arguments, **({name: _value(value, bindings)} if name else {}))
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        return _first_line(error)
    return None


def _value(value: object | Make, bindings: Bindings) -> object:
    return value(bindings) if callable(value) else value
