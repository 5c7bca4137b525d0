"""CONTRACT FAKE of ``tensorrt_llm.bindings.executor``: signatures as read in public sources, tokens by the simulated executor.

Traps that the real bindings set, so that an adapter that falls into one fails its tests: ids of the library's own; the prompt comes
back unless ``exclude_input_from_output`` is set; one ``end_id``; time is a timedelta; unknown keywords raise TypeError; log-probabilities
grow over a stream; reuse is told with the final response only; a second class, not a flag, says how a sequence ended.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from tests.trtllm.fake_engine import FakeEngine, FakeEvents
from tests.trtllm.fake_ranks import Ranks, world


class ModelType(Enum):
    DECODER_ONLY = 0
    ENCODER_ONLY = 1
    ENCODER_DECODER = 2


class BatchingType(Enum):
    STATIC = 0
    INFLIGHT = 1


class CapacitySchedulerPolicy(Enum):
    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class ContextChunkingPolicy(Enum):
    FIRST_COME_FIRST_SERVED = 0
    EQUAL_PROGRESS = 1


class CommunicationType(Enum):
    MPI = 0


class CommunicationMode(Enum):
    LEADER = 0
    ORCHESTRATOR = 1


class FinishReason(Enum):
    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3
    TIMED_OUT = 4
    CANCELLED = 5


@dataclass
class SchedulerConfig:
    capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    context_chunking_policy: ContextChunkingPolicy | None = None
    dynamic_batch_config: object | None = None


@dataclass
class KvCacheConfig:
    enable_block_reuse: bool = True
    max_tokens: int | None = None
    max_attention_window: list[int] | None = None
    sink_token_length: int | None = None
    free_gpu_memory_fraction: float | None = None
    host_cache_size: int | None = None
    onboard_blocks: bool = True
    cross_kv_cache_fraction: float | None = None
    secondary_offload_min_priority: int | None = None
    event_buffer_max_size: int = 0
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True


@dataclass
class ParallelConfig:
    communication_type: CommunicationType = CommunicationType.MPI
    communication_mode: CommunicationMode = CommunicationMode.LEADER
    device_ids: list[int] | None = None
    participant_ids: list[int] | None = None
    orchestrator_config: object | None = None
    num_nodes: int | None = None


@dataclass(slots=True)
class ExtendedRuntimePerfKnobConfig:
    """The constructor takes two; the other two are set afterwards."""

    multi_block_mode: bool = True
    enable_context_fmha_fp32_acc: bool = False
    cuda_graph_mode: bool = field(default=False, init=False)
    cuda_graph_cache_size: int = field(default=0, init=False)


class GuidedDecodingConfig:
    class GuidedDecodingBackend(Enum):
        XGRAMMAR = 0
        LLGUIDANCE = 1

    def __init__(
        self,
        backend: GuidedDecodingBackend,
        encoded_vocab: list[str] | None = None,
        tokenizer_str: str | None = None,
        stop_token_ids: list[int] | None = None,
    ) -> None:
        self.backend = backend
        self.encoded_vocab = encoded_vocab
        self.tokenizer_str = tokenizer_str
        self.stop_token_ids = stop_token_ids


@dataclass
class PeftCacheConfig:
    num_host_module_layer: int = 0
    num_device_module_layer: int = 0
    optimal_adapter_size: int = 8
    max_adapter_size: int = 64
    num_put_workers: int = 1
    num_ensure_workers: int = 1
    num_copy_streams: int = 1
    max_pages_per_block_host: int = 24
    max_pages_per_block_device: int = 8
    device_cache_percent: float | None = None
    host_cache_size: int | None = None
    lora_prefetch_dir: str | None = None


@dataclass
class ExecutorConfig:
    max_beam_width: int = 1
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    kv_cache_config: KvCacheConfig = field(default_factory=KvCacheConfig)
    enable_chunked_context: bool = False
    normalize_log_probs: bool = True
    iter_stats_max_iterations: int = 1000
    request_stats_max_iterations: int = 0
    batching_type: BatchingType = BatchingType.INFLIGHT
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    parallel_config: ParallelConfig | None = None
    peft_cache_config: PeftCacheConfig = field(default_factory=PeftCacheConfig)
    max_queue_size: int | None = None
    extended_runtime_perf_knob_config: ExtendedRuntimePerfKnobConfig | None = None
    guided_decoding_config: object | None = None


@dataclass
class SamplingConfig:
    beam_width: int = 1
    top_k: int | None = field(default=None, kw_only=True)
    top_p: float | None = field(default=None, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    temperature: float | None = field(default=None, kw_only=True)
    min_tokens: int | None = field(default=None, kw_only=True)
    repetition_penalty: float | None = field(default=None, kw_only=True)
    presence_penalty: float | None = field(default=None, kw_only=True)
    frequency_penalty: float | None = field(default=None, kw_only=True)
    no_repeat_ngram_size: int | None = field(default=None, kw_only=True)
    num_return_sequences: int | None = field(default=None, kw_only=True)
    min_p: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.temperature is not None and self.temperature <= 0.0:
            raise RuntimeError("[TensorRT-LLM][ERROR] Assertion failed: temperature must be greater than 0")


@dataclass
class OutputConfig:
    return_log_probs: bool = False
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = False
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: object | None = None


@dataclass
class LoraConfig:
    task_id: int
    weights: object | None = None
    config: object | None = None


@dataclass
class GuidedDecodingParams:
    class GuideType(Enum):
        JSON = 0
        JSON_SCHEMA = 1
        REGEX = 2
        EBNF_GRAMMAR = 3
        STRUCTURAL_TAG = 4

    guide_type: GuideType
    guide: str | None = None


@dataclass
class TokenRangeRetentionConfig:
    token_start: int
    token_end: int | None
    priority: int
    duration_ms: timedelta | None = None


class KvCacheRetentionConfig:
    TokenRangeRetentionConfig = TokenRangeRetentionConfig

    def __init__(
        self,
        token_range_retention_configs: list[Any],
        decode_retention_priority: int = 35,
        decode_duration_ms: timedelta | None = None,
    ) -> None:
        self.token_range_retention_configs = token_range_retention_configs
        self.decode_retention_priority = decode_retention_priority
        self.decode_duration_ms = decode_duration_ms


@dataclass
class Request:
    input_token_ids: list[int]
    max_tokens: int
    streaming: bool = field(default=False, kw_only=True)
    sampling_config: SamplingConfig = field(default_factory=SamplingConfig, kw_only=True)
    output_config: OutputConfig = field(default_factory=OutputConfig, kw_only=True)
    end_id: int | None = field(default=None, kw_only=True)
    pad_id: int | None = field(default=None, kw_only=True)
    bad_words: list[list[int]] | None = field(default=None, kw_only=True)
    stop_words: list[list[int]] | None = field(default=None, kw_only=True)
    embedding_bias: object | None = field(default=None, kw_only=True)
    lora_config: LoraConfig | None = field(default=None, kw_only=True)
    kv_cache_retention_config: KvCacheRetentionConfig | None = field(default=None, kw_only=True)
    client_id: int | None = field(default=None, kw_only=True)
    return_all_generated_tokens: bool = field(default=False, kw_only=True)
    priority: float = field(default=0.5, kw_only=True)
    guided_decoding_params: GuidedDecodingParams | None = field(default=None, kw_only=True)
    allotted_time_ms: timedelta | None = field(default=None, kw_only=True)
    cache_salt_id: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if type(self.input_token_ids) is not list:
            raise TypeError("__init__(): incompatible function arguments: input_token_ids: list[int]")
        if self.allotted_time_ms is not None and type(self.allotted_time_ms) is not timedelta:
            raise TypeError("__init__(): incompatible function arguments: allotted_time_ms: datetime.timedelta | None")


@dataclass
class KvCacheMetrics:
    num_reused_blocks: int
    num_missed_blocks: int = 0


@dataclass
class RequestPerfMetrics:
    kv_cache_metrics: KvCacheMetrics


class _Fields:
    """Attributes of the bindings' result classes: read-only names on the class, set on the instance."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def _names(*names: str) -> dict[str, None]:
    return dict.fromkeys(names)


Result = type(
    "Result",
    (_Fields,),
    _names(
        "is_final",
        "output_token_ids",
        "log_probs",
        "finish_reasons",
        "sequence_index",
        "is_sequence_final",
        "request_perf_metrics",
    ),
)
IterationStats = type(
    "IterationStats", (_Fields,), _names("iter", "num_active_requests", "num_queued_requests", "kv_cache_stats")
)
KvCacheStats = type(
    "KvCacheStats",
    (_Fields,),
    _names("max_num_blocks", "used_num_blocks", "tokens_per_block", "reused_blocks", "missed_blocks"),
)


class kv_cache:  # noqa: N801 - a submodule of the bindings
    """``timeout_ms`` is what the bindings call it; None would wait for an event, holding the interpreter's lock."""

    @dataclass(slots=True)
    class KVCacheStoredBlockData:
        block_hash: int = 0

    @dataclass(slots=True)
    class KVCacheStoredData:
        parent_hash: int | None = None
        blocks: list[Any] = field(default_factory=list)

    @dataclass(slots=True)
    class KVCacheRemovedData:
        block_hashes: list[int] = field(default_factory=list)

    @dataclass(slots=True)
    class KVCacheEvent:
        event_id: int = 0
        data: object = None
        window_size: int = 0

    class KVCacheEventManager:
        def __init__(self, events: FakeEvents) -> None:
            self._events = events

        def get_latest_events(self, timeout_ms: float | None = None) -> list[Any]:
            if timeout_ms is None:
                raise RuntimeError("the real one would wait for ever and hold the interpreter's lock")
            return [_event(*one) for one in self._events.take()]


def _event(number: int, reusable: bool, digest: int) -> kv_cache.KVCacheEvent:
    data: object = kv_cache.KVCacheRemovedData([digest])
    if reusable:
        data = kv_cache.KVCacheStoredData(None, [kv_cache.KVCacheStoredBlockData(digest)])
    return kv_cache.KVCacheEvent(number, data, 256)


class Response:
    def __init__(self, request_id: int, client_id: int | None, result: Any = None, error_msg: str = "") -> None:
        self.request_id_ = request_id
        self.client_id_ = client_id
        self._result = result
        self._error = error_msg

    @property
    def request_id(self) -> int:
        return self.request_id_

    @property
    def client_id(self) -> int | None:
        return self.client_id_

    def has_error(self) -> bool:
        return bool(self._error)

    @property
    def error_msg(self) -> str:
        return self._error

    @property
    def result(self) -> Any:
        if self._error:
            raise RuntimeError("Assertion failed: Cannot get the result of a response with an error")
        return self._result


class Executor:
    """Rank 0 decodes with the simulated executor; the other ranks wait in shutdown() for rank 0's."""

    def __init__(self, model_path: Path, model_type: ModelType, executor_config: ExecutorConfig) -> None:
        if model_type is not ModelType.DECODER_ONLY:
            raise RuntimeError("the fake knows decoders only")
        document = json.loads((Path(model_path) / "config.json").read_text())
        self._ranks: Ranks = world()
        mapping = document["pretrained_config"]["mapping"]
        if self._ranks.size != mapping["tp_size"] * mapping["pp_size"]:
            raise RuntimeError(
                "[TensorRT-LLM][ERROR] Assertion failed: MPI worldSize is expected to be equal to tp*pp when participantIds are not specified"
            )
        if os.environ.get("FAKE_TENSORRT_LLM_HANGS_AT_LOADING") == str(self._ranks.rank):
            self._ranks.hang()
        if (line := os.environ.get("FAKE_TENSORRT_LLM_FAILS_WITH")) is not None:
            sys.stderr.write(f"{line}\n")  # as the real one: the line that tells goes to the log ...
            raise RuntimeError(
                "[TensorRT-LLM][ERROR] Assertion failed: Failed to deserialize cuda engine"
            )  # ... not here
        self._ranks.meet()
        self._engine = FakeEngine(Path(model_path), document, executor_config) if self._ranks.rank == 0 else None

    def can_enqueue_requests(self) -> bool:
        return self._engine is not None and not self._engine.closed

    def enqueue_requests(self, requests: list[Request]) -> list[int]:
        return self._leader().enqueue(requests)

    def await_responses(self, timeout: timedelta | None = None) -> list[Response]:
        if timeout is not None and type(timeout) is not timedelta:
            raise TypeError("await_responses(): incompatible function arguments")
        seconds = 3600.0 if timeout is None else timeout.total_seconds()
        return [self._response(*one) for one in self._leader().await_responses(seconds)]

    def cancel_request(self, id: int) -> None:  # noqa: A002 - the library's name
        self._leader().cancel(id)

    def get_latest_iteration_stats(self) -> list[Any]:
        stats = self._leader().new_stats()
        if stats is None:
            return []
        blocks = KvCacheStats(
            max_num_blocks=stats.max_blocks,
            used_num_blocks=stats.used_blocks,
            tokens_per_block=self._leader().block_size,
            reused_blocks=stats.reused_blocks,
            missed_blocks=stats.missed_blocks,
        )
        return [
            IterationStats(
                iter=stats.iterations,
                num_active_requests=stats.active,
                num_queued_requests=stats.queued,
                kv_cache_stats=blocks,
            )
        ]

    def get_kv_cache_event_manager(self) -> kv_cache.KVCacheEventManager | None:
        events = self._leader().events
        return kv_cache.KVCacheEventManager(events) if events.size else None

    def shutdown(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._ranks.dismiss()
        else:
            self._ranks.wait_for_dismissal()

    def _leader(self) -> FakeEngine:
        if self._engine is None or self._engine.closed:
            raise RuntimeError("LLM is shutting down")
        return self._engine

    def _response(self, request_id: int, client_id: int | None, said: dict[str, Any]) -> Response:
        if said["error"]:
            return Response(request_id, client_id, error_msg=said["error"])
        metrics = None
        if said["reused"] is not None:
            metrics = RequestPerfMetrics(KvCacheMetrics(num_reused_blocks=said["reused"]))
        result = Result(
            is_final=said["final"],
            output_token_ids=[said["tokens"]],
            log_probs=said["log_probs"],
            finish_reasons=[FinishReason[said["finish"]]],
            sequence_index=said["index"],
            is_sequence_final=said["finish"] != "NOT_FINISHED",
            request_perf_metrics=metrics,
        )
        return Response(request_id, client_id, result)
