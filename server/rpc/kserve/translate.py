"""A request of this wire as one of the native API, which alone validates and runs it."""

from __future__ import annotations

import msgspec

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.inference import grpc_service_pb2 as wire
from server.engine import EngineInfo
from server.errors import InvalidRequestError, NotBuiltError
from server.rpc.kserve.inputs import Inputs
from server.rpc.kserve.models import INPUTS, Kind, ModelBook, check_requested
from server.rpc.kserve.parameters import Parameters, read_parameters
from server.rpc.kserve.tensors import read_inputs
from server.rpc.kserve.word_lists import BANS, STOPS, read_words, set_stop_words
from server.rpc.opening import GenerationParts

_UNBUILT = (
    "lora_task_id",
    "lora_weights",
    "lora_config",
    "prompt_embedding_table",
    "prompt_vocab_size",
    "embedding_bias",
    "embedding_bias_words",
    "embedding_bias_weights",
)
_FIELDS: dict[Kind, dict[str, str]] = {
    "text": {"prompt.text": "text_input", "sampling.top_k": "top_k", "sampling.top_p": "top_p"},
    "tokens": {
        "prompt.token_ids": "input_ids",
        "max_tokens": "request_output_len",
        "stop.token_ids": STOPS,
        "stop.strings": STOPS,
        "sampling.bad_tokens": BANS,
        "sampling.top_k": "runtime_top_k",
        "sampling.top_p": "runtime_top_p",
    },
}
_SHARED_FIELDS = {
    "request_id": "id",
    "n": "num_return_sequences",
    "ttft_deadline": "parameters.timeout",
    "stop.strings": "stop_words",
    "stop.min_tokens": "min_length",
    "stop.ignore_end": "end_id",
    "sampling.temperature": "temperature",
    "sampling.min_p": "min_p",
    "sampling.bad_words": "bad_words",
    "sampling.repetition_penalty": "repetition_penalty",
    "sampling.presence_penalty": "presence_penalty",
    "sampling.frequency_penalty": "frequency_penalty",
    "sampling.no_repeat_ngram": "no_repeat_ngram_size",
    "guide": "guided_decoding_guide",
}


class Translated(msgspec.Struct, frozen=True):
    """What a request asks for, and how it wants to hear of it."""

    message: pb.GenerateRequest
    kind: Kind
    model_name: str
    requested: frozenset[str]
    """Outputs; empty = all that were not opted out of."""
    parameters: Parameters
    streaming: bool
    stop: bool
    """Not a request of its own: it ends the one of the same id."""
    include_input: bool
    facts: bool
    """Report times and blocks."""
    batched: bool
    """The client's tensors have a batch dimension: so do the answer's."""


def translate(request: wire.ModelInferRequest, models: ModelBook, parts: GenerationParts) -> Translated:
    """Raises InvalidRequestError and UnknownModelError, in this wire's names."""
    kind = models.kind(request.model_name, request.model_version)
    parameters = read_parameters(request.parameters)
    requested = check_requested(request, kind)
    tensors = read_inputs(request)
    stop = tensors.get("stop")
    if stop is not None and stop.values == [True]:
        tensors, specs = {"stop": stop}, [spec for spec in INPUTS[kind] if not spec.required]
    else:
        specs = list(INPUTS[kind])
    inputs = Inputs(tensors, specs)
    streaming = inputs.flag("streaming") or (kind == "text" and inputs.flag("stream"))
    # TensorRT-LLM's executor gives the prompt back unless told otherwise, and never in a stream.
    include_input = not streaming and not inputs.flag("exclude_input_in_output")
    message = pb.GenerateRequest() if inputs.flag("stop") else _message(inputs, kind, parts)
    message.request_id = request.id
    message.priority = parameters.priority
    message.echo = include_input and kind == "text"
    if parameters.timeout_us:
        message.ttft_deadline.FromMicroseconds(parameters.timeout_us)
    return Translated(
        message,
        kind,
        request.model_name,
        requested,
        parameters,
        streaming=streaming,
        stop=inputs.flag("stop"),
        include_input=include_input,
        facts=inputs.flag("return_perf_metrics") or inputs.flag("return_kv_cache_reuse_stats"),
        batched=kind == "tokens" and "input_ids" in inputs and len(inputs.shape("input_ids")) > 1,
    )


def in_this_wires_names(error: InvalidRequestError, kind: Kind) -> InvalidRequestError:
    """The native API's error with the tensor's name in place of the field's."""
    for field, name in {**_SHARED_FIELDS, **_FIELDS[kind]}.items():
        if error.field == field or error.field.startswith((f"{field}.", f"{field}[")):
            renamed = InvalidRequestError(name, error.problem)
            renamed.request_id = error.request_id
            return renamed
    return error


def _message(inputs: Inputs, kind: Kind, parts: GenerationParts) -> pb.GenerateRequest:
    for name in _UNBUILT:
        if name in inputs:
            raise NotBuiltError(name)
    for name in ("return_context_logits", "return_generation_logits"):
        if inputs.flag(name):
            raise NotBuiltError(name)
    if (beams := inputs.whole("beam_width")) not in (None, 1):
        raise InvalidRequestError("beam_width", f"must be 1, there is no beam search here; it is {beams}")
    message = pb.GenerateRequest()
    if kind == "text":
        message.prompt.text = inputs.text("text_input") or ""
        max_tokens = inputs.whole("max_tokens")
        message.stop.strings.extend(inputs.texts("stop_words"))
        message.sampling.bad_words.extend(inputs.texts("bad_words"))
        _set_sampling(message, inputs, top_k="top_k", top_p="top_p")
    else:
        message.prompt.token_ids.ids.extend(_prompt_ids(inputs))
        max_tokens = inputs.whole("request_output_len")
        set_stop_words(message.stop, inputs, parts.limits, parts.tokenizer)
        message.sampling.bad_tokens.extend(pb.TokenIds(ids=word) for word in read_words(inputs, BANS))
        _set_sampling(message, inputs, top_k="runtime_top_k", top_p="runtime_top_p")
    if max_tokens is not None:
        message.max_tokens = max_tokens
    _set_end(message, inputs, parts.info)
    _set_guide(message, inputs)
    if (n := inputs.whole("num_return_sequences")) is not None:
        message.n = n
    if inputs.flag("return_log_probs"):
        message.logprobs.SetInParent()
    return message


def _set_sampling(message: pb.GenerateRequest, inputs: Inputs, *, top_k: str, top_p: str) -> None:
    sampling = message.sampling
    k, p, temperature = inputs.whole(top_k), inputs.number(top_p), inputs.number("temperature")
    if k is not None:
        sampling.top_k = k
    if p:  # 0 means unset on this wire
        sampling.top_p = p
    if temperature is not None:
        sampling.temperature = temperature
    elif (k or 0) > 1 or p:
        sampling.temperature = 1.0
    for name in ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
        if (value := inputs.number(name)) is not None:
            setattr(sampling, name, value)
    if (size := inputs.whole("no_repeat_ngram_size")) is not None:
        sampling.no_repeat_ngram = size
    if (seed := inputs.whole("random_seed", low=0, high=2**64 - 1)) is not None:
        sampling.seed = seed
    if (least := inputs.whole("min_length")) is not None:
        message.stop.min_tokens = least


def _set_end(message: pb.GenerateRequest, inputs: Inputs, info: EngineInfo) -> None:
    """``end_id`` takes the place of the model's own ends; -1 = there is none."""
    end = inputs.whole("end_id")
    if end is None or end in info.end_ids:
        return
    message.stop.ignore_end = True
    if end != -1:
        message.stop.token_ids.append(end)


def _set_guide(message: pb.GenerateRequest, inputs: Inputs) -> None:
    kind, guide = inputs.text("guided_decoding_guide_type"), inputs.text("guided_decoding_guide")
    if kind is None and guide is None:
        return
    if kind == "json":
        message.guide.json_schema = "{}"
    elif kind == "json_schema":
        message.guide.json_schema = guide or ""
    elif kind == "regex":
        message.guide.regex = guide or ""
    elif kind == "lark_grammar":
        message.guide.grammar = guide or ""
    else:
        raise InvalidRequestError(
            "guided_decoding_guide_type", f"must be json, json_schema, regex or lark_grammar, it is {kind!r}"
        )


def _prompt_ids(inputs: Inputs) -> list[int]:
    ids, length = inputs.ids("input_ids"), inputs.whole("input_lengths")
    if length is None or not 1 <= length <= len(ids):
        raise InvalidRequestError("input_lengths", f"must be from 1 to {len(ids)}, it is {length}")
    return ids[:length]
