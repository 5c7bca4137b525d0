"""The boundary: a protobuf message in, a :class:`server.engine.GenerationRequest` out, or an error that names field, limit and value.

In two parts: :func:`check` looks at what costs nothing, before the prompt is tokenized; :meth:`Checked.build` at what the
tokens decide. Nothing else makes a GenerationRequest, so nothing unchecked reaches an engine.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import msgspec

from engines.sampling.params import SamplingParams
from protos.firsttoken.v1 import generation_pb2 as pb
from server.engine import GenerationRequest, PriorityClass
from server.errors import InvalidRequestError, NotBuiltError
from server.rpc.limits import RequestLimits
from server.rpc.prompts import PromptSource, check_ids, check_prompt
from server.text.stops import NO_STOPS, StopStrings

MAX_TEMPERATURE = 100.0

_PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: PriorityClass.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: PriorityClass.INTERACTIVE,
    pb.PRIORITY_STANDARD: PriorityClass.STANDARD,
    pb.PRIORITY_BATCH: PriorityClass.BATCH,
}


class Checked(msgspec.Struct, frozen=True):
    """A request whose every field but the prompt's tokens was checked."""

    prompt: PromptSource
    max_tokens: int | None
    sampling: SamplingParams
    stop_strings: StopStrings
    stop_ids: tuple[int, ...]
    priority: PriorityClass
    cache_salt: bytes
    ttft_seconds: float | None

    def build(
        self,
        ids: Sequence[int],
        limits: RequestLimits,
        *,
        request_id: int,
        end_ids: tuple[int, ...],
        arrival: float,
        deadline: float | None,
    ) -> GenerationRequest:
        """The engine's request. Raises InvalidRequestError where prompt and max_tokens do not fit the model."""
        return GenerationRequest(
            id=request_id,
            prompt=tuple(ids),
            max_tokens=_fit(len(ids), self.max_tokens, self.prompt.field, limits),
            sampling=self.sampling,
            end_ids=end_ids,
            stop_ids=self.stop_ids,
            priority=self.priority,
            tenant="",
            cache_salt=self.cache_salt,
            arrival=arrival,
            deadline=deadline,
            ttft_deadline=None if self.ttft_seconds is None else arrival + self.ttft_seconds,
        )


def check(request: pb.GenerateRequest, limits: RequestLimits) -> Checked:
    """Check everything that can be checked without the prompt's tokens. Raises InvalidRequestError for the first violation."""
    _refuse_unbuilt(request)
    return Checked(
        prompt=check_prompt(request.prompt, limits),
        max_tokens=_max_tokens(request, limits),
        sampling=_sampling(request.sampling),
        stop_strings=_stop_strings(request.stop.strings, limits),
        stop_ids=_stop_ids(request.stop.token_ids, limits),
        priority=_priority(request.priority),
        cache_salt=_cache_salt(request.cache_salt, limits),
        ttft_seconds=_ttft_deadline(request),
    )


def _refuse_unbuilt(request: pb.GenerateRequest) -> None:
    """What the protocol has and the server has not yet: refused by name, never ignored."""
    for field in ("model", "request_id", "adapter"):
        if getattr(request, field):
            raise NotBuiltError(field)
    for field in ("guide", "logprobs"):
        if request.HasField(field):
            raise NotBuiltError(field)
    if request.HasField("n") and request.n != 1:
        raise NotBuiltError("n")


def _fit(prompt_tokens: int, max_tokens: int | None, field: str, limits: RequestLimits) -> int:
    if prompt_tokens == 0:
        raise InvalidRequestError(field, "must have at least 1 token, it has 0")
    if prompt_tokens > limits.max_prompt_tokens:
        raise InvalidRequestError(field, f"must have at most {limits.max_prompt_tokens} tokens, it has {prompt_tokens}")
    room = limits.max_context - prompt_tokens
    if max_tokens is None:
        return min(limits.default_max_tokens, room)
    if max_tokens > room:
        raise InvalidRequestError(
            "max_tokens",
            f"must be at most {room}, it is {max_tokens}: the prompt has {prompt_tokens} tokens of a context of {limits.max_context}",
        )
    return max_tokens


def _max_tokens(request: pb.GenerateRequest, limits: RequestLimits) -> int | None:
    if not request.HasField("max_tokens"):
        return None
    if not 0 <= request.max_tokens < limits.max_context:
        raise InvalidRequestError(
            "max_tokens", f"must be from 0 to {limits.max_context - 1}, it is {request.max_tokens}"
        )
    return request.max_tokens


def _sampling(sampling: pb.Sampling) -> SamplingParams:
    temperature, top_p, min_p, top_k = sampling.temperature, 1.0, sampling.min_p, sampling.top_k
    if not 0 <= temperature <= MAX_TEMPERATURE:
        raise InvalidRequestError(
            "sampling.temperature", f"must be from 0 to {MAX_TEMPERATURE:g}, it is {temperature:g}"
        )
    if top_k < 0:
        raise InvalidRequestError("sampling.top_k", f"must be at least 0, it is {top_k}")
    if sampling.HasField("top_p"):
        top_p = sampling.top_p
        if not 0 < top_p <= 1:
            raise InvalidRequestError("sampling.top_p", f"must be above 0 and at most 1, it is {top_p:g}")
    if not 0 <= min_p <= 1:
        raise InvalidRequestError("sampling.min_p", f"must be from 0 to 1, it is {min_p:g}")
    seed = sampling.seed if sampling.HasField("seed") else secrets.randbits(64)
    return SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)


def _stop_strings(strings: Sequence[str], limits: RequestLimits) -> StopStrings:
    if not strings:
        return NO_STOPS
    if len(strings) > limits.max_stop_strings:
        raise InvalidRequestError(
            "stop.strings", f"must have at most {limits.max_stop_strings} entries, it has {len(strings)}"
        )
    for index, string in enumerate(strings):
        size = len(string.encode())
        if not 1 <= size <= limits.max_stop_string_bytes:
            raise InvalidRequestError(
                f"stop.strings[{index}]", f"must have from 1 to {limits.max_stop_string_bytes} bytes, it has {size}"
            )
    return StopStrings(strings)


def _stop_ids(ids: Sequence[int], limits: RequestLimits) -> tuple[int, ...]:
    if len(ids) > limits.max_stop_token_ids:
        raise InvalidRequestError(
            "stop.token_ids", f"must have at most {limits.max_stop_token_ids} entries, it has {len(ids)}"
        )
    check_ids("stop.token_ids", ids, limits.vocab_size)
    return tuple(dict.fromkeys(ids))


def _priority(value: int) -> PriorityClass:
    priority = _PRIORITIES.get(value)  # type: ignore[call-overload]  # an open enum: clients may send any number
    if priority is None:
        known = ", ".join(f"{number} ({name})" for name, number in pb.Priority.items())
        raise InvalidRequestError("priority", f"must be one of {known}, it is {value}")
    return PriorityClass(priority)


def _cache_salt(salt: str, limits: RequestLimits) -> bytes:
    encoded = salt.encode()
    if len(encoded) > limits.max_cache_salt_bytes:
        raise InvalidRequestError(
            "cache_salt", f"must have at most {limits.max_cache_salt_bytes} bytes, it has {len(encoded)}"
        )
    return encoded


def _ttft_deadline(request: pb.GenerateRequest) -> float | None:
    if not request.HasField("ttft_deadline"):
        return None
    seconds = request.ttft_deadline.seconds + request.ttft_deadline.nanos / 1e9
    if not (seconds > 0 and math.isfinite(seconds)):
        raise InvalidRequestError("ttft_deadline", f"must be above 0 s, it is {seconds:g} s")
    return seconds
