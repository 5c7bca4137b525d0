"""The boundary: a protobuf message in, a :class:`server.engine.GenerationRequest` out, or an error that names field, limit and value.

In two parts: :func:`check` looks at what costs nothing, before the prompt is tokenized; :meth:`Checked.build` at what the
tokens decide. Nothing else makes a GenerationRequest, so nothing unchecked reaches an engine.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engines.contract import Retention
from engines.sampling.params import Guide, SamplingParams
from protos.firsttoken.v1 import generation_pb2 as pb
from server.engine import EngineInfo, GenerationRequest, PriorityClass
from server.errors import InvalidRequestError, UnknownModelError
from server.rpc.length_fields import check_max_tokens, check_outputs, check_truncate_prompt, fit_outputs, fit_prompt
from server.rpc.limits import RequestLimits
from server.rpc.prompts import PromptSource, check_prompt
from server.rpc.retention_fields import check_retention, check_retention_length
from server.rpc.sampling_fields import check_guide, check_logprobs, check_sampling
from server.rpc.stop_fields import check_min_tokens, check_stop_ids, check_stop_strings
from server.text.stops import StopStrings

_PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: PriorityClass.INTERACTIVE,
    pb.PRIORITY_INTERACTIVE: PriorityClass.INTERACTIVE,
    pb.PRIORITY_STANDARD: PriorityClass.STANDARD,
    pb.PRIORITY_BATCH: PriorityClass.BATCH,
}
MAX_DURATION = 315_576_000_000
"""Seconds that a google.protobuf.Duration can say: some 10,000 years."""
Runs = Sequence[Sequence[int]]
"""Runs of token ids."""


class Checked(msgspec.Struct, frozen=True):
    """A request whose every field but the prompt's tokens was checked."""

    prompt: PromptSource
    max_tokens: int | None
    sampling: SamplingParams
    bad_words: tuple[str, ...]
    """Still to be read by the tokenizer."""
    stop_strings: StopStrings
    stop_ids: tuple[int, ...]
    include_stop: bool
    min_tokens: int
    end_ids: tuple[int, ...]
    """Empty where the request ignores the model's ends."""
    priority: PriorityClass
    cache_salt: bytes
    ttft_seconds: float | None
    request_id: str
    n: int
    prompt_logprobs: int | None
    truncate_prompt: int | None
    echo: bool
    adapter: int
    retention: tuple[Retention, ...] = ()
    tenant: str = ""

    def build(
        self,
        ids: Sequence[int],
        limits: RequestLimits,
        info: EngineInfo,
        *,
        request_id: int,
        arrival: float,
        deadline: float | None,
        bad_tokens: Runs = (),
        traced: bool = False,
    ) -> GenerationRequest:
        """The engine's request. ``ids`` are the prompt's, ``bad_tokens`` those of the bad words.

        Raises InvalidRequestError where prompt and max_tokens do not fit the model.
        """
        if self.truncate_prompt is not None:
            ids = ids[-self.truncate_prompt :]
        max_tokens = fit_prompt(len(ids), self.max_tokens, self.prompt.field, limits)
        if self.min_tokens > max_tokens:
            raise InvalidRequestError(
                "stop.min_tokens", f"must be at most max_tokens, {max_tokens}, it is {self.min_tokens}"
            )
        fit_outputs(self.n, len(ids) + max_tokens, info)
        check_retention_length(self.retention, len(ids))
        return GenerationRequest(
            id=request_id,
            prompt=tuple(ids),
            max_tokens=max_tokens,
            sampling=self._final_sampling(bad_tokens),
            end_ids=self.end_ids,
            stop_ids=self.stop_ids,
            priority=self.priority,
            tenant=self.tenant,
            cache_salt=self.cache_salt,
            arrival=arrival,
            deadline=deadline,
            ttft_deadline=None if self.ttft_seconds is None else arrival + self.ttft_seconds,
            n=self.n,
            prompt_logprobs=self.prompt_logprobs,
            adapter=self.adapter,
            traced=traced,
            retention=self.retention,
        )

    def _final_sampling(self, bad_tokens: Runs) -> SamplingParams:
        if not bad_tokens:
            return self.sampling
        runs = (*self.sampling.bad_tokens, *(tuple(run) for run in bad_tokens))
        return msgspec.structs.replace(self.sampling, bad_tokens=tuple(dict.fromkeys(runs)))


def check(request: pb.GenerateRequest, limits: RequestLimits, info: EngineInfo) -> Checked:
    """Check everything that can be checked without the prompt's tokens. Raises InvalidRequestError for the first violation, and
    UnknownModelError."""
    _check_model(request, info)
    stop_ids = check_stop_ids(request.stop.token_ids, limits)
    end_ids = () if request.stop.ignore_end else info.end_ids
    min_tokens = check_min_tokens(request.stop, limits)
    max_tokens = check_max_tokens(request, limits)
    truncate_prompt = check_truncate_prompt(request, limits)
    return Checked(
        prompt=check_prompt(request.prompt, limits, keep=truncate_prompt),
        max_tokens=max_tokens,
        sampling=_sampling(request, limits, info, min_tokens=min_tokens, ending_ids=(*end_ids, *stop_ids)),
        bad_words=tuple(request.sampling.bad_words),
        stop_strings=check_stop_strings(request.stop.strings, limits),
        stop_ids=stop_ids,
        include_stop=request.stop.include,
        min_tokens=min_tokens,
        end_ids=end_ids,
        priority=_priority(request.priority),
        cache_salt=_cache_salt(request.cache_salt, limits),
        ttft_seconds=_ttft_deadline(request),
        request_id=_request_id(request.request_id, limits),
        n=check_outputs(request, max_tokens, limits),
        prompt_logprobs=_prompt_logprobs(request, limits, info),
        truncate_prompt=truncate_prompt,
        echo=request.echo,
        adapter=_adapter(request, info),
        retention=check_retention(request.retention, offered=info.capabilities.retention),
    )


def _check_model(request: pb.GenerateRequest, info: EngineInfo) -> None:
    if request.model not in ("", info.model):
        raise UnknownModelError(f"model: no {request.model!r} here, this server serves {info.model!r}")


def _adapter(request: pb.GenerateRequest, info: EngineInfo) -> int:
    """Its number, counted from 1; 0 for none."""
    if not request.adapter:
        return 0
    if not info.adapters:
        raise InvalidRequestError("adapter", "this engine has no adapters (capabilities.adapters); leave it empty")
    if request.adapter not in info.adapters:
        offered = ", ".join(info.adapters)
        raise InvalidRequestError("adapter", f"must be one of this engine's, {offered}; it is {request.adapter!r}")
    return 1 + info.adapters.index(request.adapter)


def _sampling(
    request: pb.GenerateRequest,
    limits: RequestLimits,
    info: EngineInfo,
    *,
    min_tokens: int,
    ending_ids: tuple[int, ...],
) -> SamplingParams:
    sampling = check_sampling(request.sampling, limits)
    _check_held_back(min_tokens, len(set(ending_ids)), info)
    return msgspec.structs.replace(
        sampling,
        logprobs=check_logprobs(request.logprobs, limits) if request.HasField("logprobs") else None,
        min_tokens=min_tokens,
        ending_ids=tuple(dict.fromkeys(ending_ids)) if min_tokens else (),
        guide=_guide(request, limits, info) if request.HasField("guide") else None,
    )


def _check_held_back(min_tokens: int, ending_ids: int, info: EngineInfo) -> None:
    held_back = info.capabilities.held_back
    if min_tokens and held_back is not None and ending_ids > held_back:
        raise InvalidRequestError(
            "stop.min_tokens",
            f"this engine holds back at most {held_back} ending id (capabilities.held_back), the request has {ending_ids}, the model's ends "
            "included; set stop.ignore_end, or leave it 0",
        )


def _guide(request: pb.GenerateRequest, limits: RequestLimits, info: EngineInfo) -> Guide:
    if not info.capabilities.masks:
        raise InvalidRequestError("guide", "this engine offers no structured output (capabilities.masks)")
    if request.stop.ignore_end:
        raise InvalidRequestError("stop.ignore_end", "must not be set with a guide, whose end is the model's")
    guide = check_guide(request.guide, limits)
    if guide.kind not in info.capabilities.guides:
        offered = ", ".join(info.capabilities.guides)
        raise InvalidRequestError(f"guide.{guide.kind}", f"this engine's guides are {offered} (capabilities.guides)")
    return guide


def _prompt_logprobs(request: pb.GenerateRequest, limits: RequestLimits, info: EngineInfo) -> int | None:
    if not request.logprobs.prompt:
        return None
    if not info.capabilities.score:
        raise InvalidRequestError("logprobs.prompt", "this engine offers no scores of prompts (capabilities.score)")
    return check_logprobs(request.logprobs, limits)


def _request_id(name: str, limits: RequestLimits) -> str:
    if len(name) > limits.max_request_id_size:
        raise InvalidRequestError(
            "request_id", f"must have at most {limits.max_request_id_size} characters, it has {len(name)}"
        )
    if not (name.isascii() and name.isprintable()):
        raise InvalidRequestError("request_id", f"must be printable ASCII, it is {name!a}")
    return name


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
    given = request.ttft_deadline
    seconds = given.seconds + given.nanos / 1e9
    if not 0 <= given.nanos < 10**9 and seconds > 0:
        raise InvalidRequestError("ttft_deadline.nanos", f"must be from 0 to 999999999, it is {given.nanos}")
    if not 0 < seconds <= MAX_DURATION:
        raise InvalidRequestError(
            "ttft_deadline", f"must be above 0 s and at most {MAX_DURATION} s, it is {seconds:.12g} s"
        )
    return seconds
