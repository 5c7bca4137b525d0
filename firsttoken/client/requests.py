"""From arguments to protocol messages: one place for the sync and the async client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration

from firsttoken.client.options import Conversation, GenerateOptions, PrefixOptions, Tools
from firsttoken.client.values import Message, Priority, Retention
from firsttoken.errors import ArgumentError
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import operations_pb2


def generate_request(prompt: str | Sequence[int] | None, options: GenerateOptions) -> pb.GenerateRequest:
    """Raises ArgumentError, naming the argument."""
    unknown = options.keys() - GenerateOptions.__annotations__.keys()
    if unknown:
        raise ArgumentError(f"generate() has no option {', '.join(sorted(unknown))}")
    request = pb.GenerateRequest(prompt=prompt_of(prompt, options.get("messages"), options.get("tools")))
    for name in _SAMPLING:
        _set(request.sampling, name, options.get(name))
    _update(request.sampling.logit_bias, "logit_bias", options.get("logit_bias", {}))
    _extend(request.sampling.bad_words, "bad_words", options.get("bad_words", ()))
    for run in options.get("bad_tokens", ()):
        _extend(request.sampling.bad_tokens.add().ids, "bad_tokens", run)
    _set_guide(request, options)
    _set(request.logprobs, "top", options.get("logprobs"), name="logprobs")
    _set(request.logprobs, "prompt", options.get("prompt_logprobs") or None, name="prompt_logprobs")
    stop = options.get("stop", ())
    _extend(request.stop.strings, "stop", [stop] if isinstance(stop, str) else stop)
    _extend(request.stop.token_ids, "stop_token_ids", options.get("stop_token_ids", ()))
    _set(request.stop, "include", options.get("include_stop"), name="include_stop")
    for name in ("min_tokens", "ignore_end"):
        _set(request.stop, name, options.get(name))
    for name in ("max_tokens", "n", "echo", "cache_salt", "truncate_prompt", "model", "adapter", "request_id"):
        _set(request, name, options.get(name))
    if "priority" in options:
        request.priority = _priority(options["priority"])
    for stretch in options.get("retention", ()):
        request.retention.append(_retention(stretch))
    if "ttft_deadline" in options:
        request.ttft_deadline.CopyFrom(_duration("ttft_deadline", options["ttft_deadline"]))
    return request


def _retention(stretch: Retention) -> pb.Retention:
    message = pb.Retention()
    for name in ("first", "end", "priority"):
        _set(message, name, getattr(stretch, name), name=f"retention: {name}")
    if stretch.seconds is not None:
        message.duration.CopyFrom(_duration("retention: seconds", stretch.seconds))
    return message


_SAMPLING = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram",
)
_GUIDES = ("json_schema", "regex", "grammar", "choice")


def _set_guide(request: pb.GenerateRequest, options: GenerateOptions) -> None:
    given = [name for name in _GUIDES if options.get(name) is not None]
    if len(given) > 1:
        raise ArgumentError(f"give at most one of {', '.join(_GUIDES)}, not {' and '.join(given)}")
    if not given:
        return
    if given == ["choice"]:
        _extend(request.guide.choice.options, "choice", options["choice"])
        return
    value: object = options.get(given[0])
    if given == ["json_schema"] and not isinstance(value, str):
        value = _json("json_schema", value)
    _set(request.guide, given[0], value)


def prompt_of(
    prompt: str | Sequence[int] | None, messages: Conversation | None, tools: Tools | None = None
) -> pb.Prompt:
    """Raises ArgumentError unless exactly one is given."""
    if (prompt is None) == (messages is None):
        raise ArgumentError("give either a prompt or messages")
    if tools is not None and messages is None:
        raise ArgumentError("tools: go with messages, whose template shows them, not with a prompt")
    result = pb.Prompt()
    if isinstance(prompt, str):
        _set(result, "text", prompt, name="prompt")
    elif prompt is not None:
        result.token_ids.SetInParent()
        _extend(result.token_ids.ids, "prompt", prompt)
    else:
        result.messages.SetInParent()
        _extend(result.messages.messages, "messages", [_message(message) for message in messages or ()])
        if tools is not None:
            _set(result.messages, "tools", tools if isinstance(tools, str) else _json("tools", tools), name="tools")
    return result


def tokenize_request(prompt: str | None, messages: Conversation | None, tools: Tools | None) -> pb.TokenizeRequest:
    return pb.TokenizeRequest(prompt=prompt_of(prompt, messages, tools))


def warm_request(prompt: str | Sequence[int] | None, options: PrefixOptions) -> operations_pb2.WarmPrefixRequest:
    """Raises ArgumentError, naming the argument."""
    request = operations_pb2.WarmPrefixRequest(prompt=prompt_of(prompt, options.get("messages"), options.get("tools")))
    for name in ("cache_salt", "tenant"):
        _set(request, name, options.get(name))
    return request


def pin_request(
    prompt: str | Sequence[int] | None, seconds: float, prefix: str | None, options: PrefixOptions
) -> operations_pb2.PinPrefixRequest:
    """Raises ArgumentError, naming the argument."""
    if prefix is not None and (prompt is not None or options):
        raise ArgumentError("prefix: its name says all; give neither a prompt nor options with it")
    request = operations_pb2.PinPrefixRequest(time_to_live=_duration("seconds", seconds))
    if prefix is not None:
        _set(request, "prefix", prefix)
        return request
    request.prompt.CopyFrom(prompt_of(prompt, options.get("messages"), options.get("tools")))
    for name in ("cache_salt", "tenant"):
        _set(request, name, options.get(name))
    return request


def detokenize_request(ids: Sequence[int], show_special_tokens: bool) -> pb.DetokenizeRequest:
    request = pb.DetokenizeRequest(show_special_tokens=show_special_tokens)
    _extend(request.ids, "ids", ids)
    return request


def _message(message: Message | Mapping[str, Any]) -> pb.Message:
    try:
        if not isinstance(message, Message):
            rest = {key: value for key, value in message.items() if key not in ("role", "content")}
            # A turn that only calls a tool has no content, or None.
            message = Message(message["role"], message.get("content") or "", rest)
        made = pb.Message(role=message.role, content=message.content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"messages: each needs a role and a content, both text: {error!r}") from error
    if message.extra:
        made.extra = _json("messages", message.extra)
    return made


def _json(name: str, value: object) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name}: {error}") from error


def _priority(priority: Priority | str) -> pb.Priority:
    try:
        return _PRIORITIES[Priority(priority)]
    except ValueError as error:
        raise ArgumentError(f"priority: must be one of {[p.value for p in Priority]}, not {priority!r}") from error


_PRIORITIES = {
    Priority.INTERACTIVE: pb.PRIORITY_INTERACTIVE,
    Priority.STANDARD: pb.PRIORITY_STANDARD,
    Priority.BATCH: pb.PRIORITY_BATCH,
}


def _duration(name: str, seconds: float) -> Duration:
    try:
        result = Duration()
        result.FromNanoseconds(round(seconds * 1e9))
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(f"{name}: must be seconds, not {seconds!r}") from error
    return result


def _set(message: Any, field: str, value: object, *, name: str | None = None) -> None:  # noqa: ANN401 - any protobuf message
    if value is None:
        return
    try:
        setattr(message, field, value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name or field}: {error}") from error


def _update(field: Any, name: str, values: Mapping[int, float]) -> None:  # noqa: ANN401 - any map of a message
    try:
        field.update(values)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name}: {error}") from error


def _extend(field: Any, name: str, values: Sequence[object]) -> None:  # noqa: ANN401 - any repeated field
    try:
        if len(values):  # extending by nothing would set the message that holds the field
            field.extend(values)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{name}: {error}") from error
