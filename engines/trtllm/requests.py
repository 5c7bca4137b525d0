"""From the contract's request to the library's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from engines.contract import ExecutorRequest, PlanError, Retention
from engines.sampling.params import Guide, SamplingParams
from engines.trtllm.native import Bindings, logit_bias

GUIDES = ("json_schema", "regex", "choice")
"""Not "grammar": the library's grammars are of another dialect than the Lark of ours."""
_USUAL_RETENTION = 35
"""The library's priority of blocks about which nothing was said."""


def check_offered(request: ExecutorRequest) -> None:
    """Raises PlanError for what the contract has and these bindings do not."""
    if request.sampling.logprobs:
        raise PlanError(
            f"request {request.request}: sampling.logprobs must be 0 on TensorRT-LLM, which tells the log-probability of "
            f"the drawn token only, got {request.sampling.logprobs}"
        )
    ending = (*request.end_ids, *request.stop_ids)
    if request.sampling.min_tokens and len(ending) > 1:
        raise PlanError(
            f"request {request.request}: sampling.min_tokens holds back one ending id on TensorRT-LLM, got {len(ending)}: its stop words "
            "end a sequence whatever its length"
        )
    guide = request.sampling.guide
    if guide is not None and guide.kind not in GUIDES:
        raise PlanError(
            f"request {request.request}: guide.kind must be one of {', '.join(GUIDES)} on TensorRT-LLM, got {guide.kind}"
        )
    if request.salt == 0:
        raise PlanError(f"request {request.request}: salt must be at least 1, got 0")


def to_request(bindings: Bindings, request: ExecutorRequest, vocab_size: int) -> object:
    """The library's request. ``client_id`` carries our id, so that a response that overtakes its enqueue call is understood.

    The library takes one end-of-sequence id; further ones travel as stop words, and ``responses`` gives them their name back.
    """
    # With min_tokens a lone stop id travels as the end that is held back.
    ends = request.end_ids or (request.stop_ids if request.sampling.min_tokens else ()) or (None,)
    end, *further = ends
    stops = [[token] for token in (*further, *request.stop_ids) if token != end] + [
        list(run) for run in request.stop_sequences
    ]
    told: dict[str, Any] = {
        "streaming": True,
        "sampling_config": _sampling(bindings, request.sampling, request.n),
        "output_config": bindings.OutputConfig(
            return_log_probs=request.sampling.logprobs is not None,
            exclude_input_from_output=True,  # the bindings' default would send every prompt back
            return_perf_metrics=True,  # the only place where reuse is told
        ),
        "client_id": request.request,
        "return_all_generated_tokens": False,
        "priority": request.priority,
    }
    told |= {
        name: value
        for name, value in {
            "end_id": end,
            "pad_id": end,
            "stop_words": stops or None,
            "allotted_time_ms": _time(request.allotted_ms),
            "cache_salt_id": request.salt,
            "bad_words": [list(run) for run in request.sampling.bad_tokens] or None,
            "embedding_bias": logit_bias(vocab_size, request.sampling.logit_bias)
            if request.sampling.logit_bias
            else None,
            "guided_decoding_params": _guide(bindings, request.sampling.guide),
            "lora_config": bindings.LoraConfig(request.adapter) if request.adapter else None,
            "kv_cache_retention_config": _retention(bindings, request.retention),
        }.items()
        if value is not None
    }
    made: object = bindings.Request(request.tokens.tolist(), request.max_tokens, **told)
    return made


def _sampling(bindings: Bindings, params: SamplingParams, n: int) -> object:
    """What has no effect is not told. Greedy is the choice among one: a temperature of 0 is no number that the library divides by."""
    told: dict[str, Any] = {
        name: value
        for name, value, idle in (
            ("min_p", params.min_p, 0.0),
            ("repetition_penalty", params.repetition_penalty, 1.0),
            ("presence_penalty", params.presence_penalty, 0.0),
            ("frequency_penalty", params.frequency_penalty, 0.0),
            ("no_repeat_ngram_size", params.no_repeat_ngram, 0),
            ("min_tokens", params.min_tokens, 0),
            ("num_return_sequences", n, 1),
        )
        if value != idle
    }
    if params.temperature == 0.0:
        told |= {"top_k": 1}
    else:
        told |= {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p}
    config: object = bindings.SamplingConfig(beam_width=1, seed=params.seed, **told)
    return config


def _guide(bindings: Bindings, guide: Guide | None) -> object | None:
    if guide is None:
        return None
    kinds = bindings.GuidedDecodingParams.GuideType  # inside the class, as nanobind binds it
    if guide.kind == "json_schema":
        made: object = bindings.GuidedDecodingParams(kinds.JSON_SCHEMA, guide.text)
    else:
        pattern = guide.text if guide.kind == "regex" else "|".join(map(re.escape, json.loads(guide.text)))
        made = bindings.GuidedDecodingParams(kinds.REGEX, pattern)
    return made


def _retention(bindings: Bindings, stretches: tuple[Retention, ...]) -> object | None:
    if not stretches:
        return None
    stretch = bindings.KvCacheRetentionConfig.TokenRangeRetentionConfig
    ranges = [stretch(one.first, one.end, one.priority, *_seconds(one.seconds)) for one in stretches]
    config: object = bindings.KvCacheRetentionConfig(ranges, _USUAL_RETENTION)
    return config


def _seconds(seconds: float | None) -> Iterator[timedelta]:
    if seconds is not None:
        yield timedelta(seconds=seconds)


def _time(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)
