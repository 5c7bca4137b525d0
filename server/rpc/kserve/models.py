"""The models that this wire shows: one that takes text, as TensorRT-LLM's ensemble does, and one that takes token ids, as its
``tensorrt_llm`` does. Both are the one served model; tables here say which tensors each has."""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

from protos.inference import grpc_service_pb2 as wire
from server.errors import InvalidRequestError, UnknownModelError

VERSION = "1"
TEXT_NAMES = ("ensemble", "tensorrt_llm_bls")
"""Names of the text model beside the served model's own: clients written for TensorRT-LLM say these."""
TOKEN_NAME = "tensorrt_llm"

Kind = Literal["text", "tokens"]


class TensorSpec(NamedTuple):
    name: str
    datatype: str
    shape: tuple[int, ...] = (1,)
    """Without a batch dimension; a leading 1 is accepted everywhere."""
    required: bool = False


_SAMPLING = (
    TensorSpec("end_id", "INT32"),
    TensorSpec("pad_id", "INT32"),
    TensorSpec("temperature", "FP32"),
    TensorSpec("repetition_penalty", "FP32"),
    TensorSpec("presence_penalty", "FP32"),
    TensorSpec("frequency_penalty", "FP32"),
    TensorSpec("no_repeat_ngram_size", "INT32"),
    TensorSpec("min_p", "FP32"),
    TensorSpec("min_length", "INT32"),
    TensorSpec("random_seed", "UINT64"),
    TensorSpec("beam_width", "INT32"),
    TensorSpec("num_return_sequences", "INT32"),
    TensorSpec("len_penalty", "FP32"),
    TensorSpec("length_penalty", "FP32"),
    TensorSpec("early_stopping", "BOOL"),
    TensorSpec("return_log_probs", "BOOL"),
    TensorSpec("return_context_logits", "BOOL"),
    TensorSpec("return_generation_logits", "BOOL"),
    TensorSpec("return_perf_metrics", "BOOL"),
    TensorSpec("return_kv_cache_reuse_stats", "BOOL"),
    TensorSpec("exclude_input_in_output", "BOOL"),
    TensorSpec("guided_decoding_guide_type", "BYTES"),
    TensorSpec("guided_decoding_guide", "BYTES"),
    TensorSpec("lora_task_id", "UINT64"),
    TensorSpec("lora_weights", "FP16", (-1, -1)),
    TensorSpec("lora_config", "INT32", (-1, 3)),
    TensorSpec("prompt_embedding_table", "FP16", (-1, -1)),
    TensorSpec("prompt_vocab_size", "INT32"),
    TensorSpec("embedding_bias", "FP32", (-1,)),
    TensorSpec("stop", "BOOL"),
)
INPUTS: dict[Kind, tuple[TensorSpec, ...]] = {
    "text": (
        TensorSpec("text_input", "BYTES", required=True),
        TensorSpec("max_tokens", "INT32"),
        TensorSpec("stream", "BOOL"),
        TensorSpec("streaming", "BOOL"),
        TensorSpec("bad_words", "BYTES", (-1,)),
        TensorSpec("stop_words", "BYTES", (-1,)),
        TensorSpec("top_k", "INT32"),
        TensorSpec("top_p", "FP32"),
        TensorSpec("embedding_bias_words", "BYTES", (-1,)),
        TensorSpec("embedding_bias_weights", "FP32", (-1,)),
        *_SAMPLING,
    ),
    "tokens": (
        TensorSpec("input_ids", "INT32", (-1,), required=True),
        TensorSpec("input_lengths", "INT32", required=True),
        TensorSpec("request_output_len", "INT32"),
        TensorSpec("streaming", "BOOL"),
        TensorSpec("bad_words_list", "INT32", (2, -1)),
        TensorSpec("stop_words_list", "INT32", (2, -1)),
        TensorSpec("runtime_top_k", "INT32"),
        TensorSpec("runtime_top_p", "FP32"),
        *_SAMPLING,
    ),
}
_FACTS = (
    TensorSpec("cum_log_probs", "FP32", (-1,)),
    TensorSpec("output_log_probs", "FP32", (-1, -1)),
    TensorSpec("batch_index", "INT32"),
    TensorSpec("sequence_index", "INT32"),
    TensorSpec("finish_reason", "BYTES", (-1,)),
    TensorSpec("kv_cache_alloc_new_blocks", "INT32"),
    TensorSpec("kv_cache_reused_blocks", "INT32"),
    TensorSpec("kv_cache_alloc_total_blocks", "INT32"),
    TensorSpec("arrival_time_ns", "INT64"),
    TensorSpec("first_scheduled_time_ns", "INT64"),
    TensorSpec("first_token_time_ns", "INT64"),
    TensorSpec("last_token_time_ns", "INT64"),
)
OUTPUTS: dict[Kind, tuple[TensorSpec, ...]] = {
    "text": (TensorSpec("text_output", "BYTES", (-1,)), *_FACTS),
    "tokens": (TensorSpec("output_ids", "INT32", (-1, -1)), TensorSpec("sequence_length", "INT32", (-1,)), *_FACTS),
}
NOT_BUILT_OUTPUTS = ("context_logits", "generation_logits", "acceptance_rate")


class ModelBook:
    """The models by name. Immutable."""

    def __init__(self, served: str) -> None:
        self.served = served
        self.kinds: dict[str, Kind] = dict.fromkeys((served, *TEXT_NAMES), "text")
        self.kinds.setdefault(TOKEN_NAME, "tokens")

    def kind(self, name: str, version: str = "") -> Kind:
        """Raises UnknownModelError."""
        kind = self.kinds.get(name)
        if kind is None or version not in ("", VERSION):
            known = ", ".join(repr(known) for known in self.kinds)
            raise UnknownModelError(
                f"model: no {name!r} of version {version or VERSION!r} here; there are {known}, version 1"
            )
        return kind

    def metadata(self, name: str, version: str) -> wire.ModelMetadataResponse:
        kind = self.kind(name, version)
        return wire.ModelMetadataResponse(
            name=name,
            versions=[VERSION],
            platform="firsttoken",
            inputs=[_metadata(spec) for spec in INPUTS[kind]],
            outputs=[_metadata(spec) for spec in OUTPUTS[kind]],
        )

    def config(self, name: str, version: str) -> wire.ModelConfigResponse:
        kind = self.kind(name, version)
        inputs = [
            wire.ModelInput(name=s.name, data_type=_data_type(s), dims=s.shape, optional=not s.required)
            for s in INPUTS[kind]
        ]
        outputs = [wire.ModelOutput(name=s.name, data_type=_data_type(s), dims=s.shape) for s in OUTPUTS[kind]]
        config = wire.ModelConfig(
            name=name,
            backend="firsttoken",
            max_batch_size=0,
            input=inputs,
            output=outputs,
            model_transaction_policy=wire.ModelTransactionPolicy(decoupled=True),
        )
        return wire.ModelConfigResponse(config=config)

    def index(self, *, ready: bool) -> wire.RepositoryIndexResponse:
        entry = wire.RepositoryIndexResponse.ModelIndex
        state, reason = ("READY", "") if ready else ("UNAVAILABLE", "the server is not ready")
        return wire.RepositoryIndexResponse(
            models=[entry(name=name, version=VERSION, state=state, reason=reason) for name in self.kinds]
        )


def check_requested(request: wire.ModelInferRequest, kind: Kind) -> frozenset[str]:
    """The outputs that are asked for; empty = all. Raises InvalidRequestError for one that does not exist."""
    names = [output.name for output in request.outputs]
    known = {spec.name for spec in OUTPUTS[kind]}
    for place, name in enumerate(names):
        if name not in known:
            problem = (
                "is not built yet"
                if name in NOT_BUILT_OUTPUTS
                else f"does not exist; there are {', '.join(sorted(known))}"
            )
            raise InvalidRequestError(f"outputs[{place}].name", f"{name!r} {problem}")
    return frozenset(names)


def _metadata(spec: TensorSpec) -> wire.ModelMetadataResponse.TensorMetadata:
    return wire.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype, shape=spec.shape)


def _data_type(spec: TensorSpec) -> wire.DataType:
    name = "STRING" if spec.datatype == "BYTES" else spec.datatype
    return cast("wire.DataType", wire.DataType.Value(f"TYPE_{name}"))
