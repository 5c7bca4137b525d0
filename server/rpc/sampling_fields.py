"""The fields of ``sampling``, ``logprobs`` and ``guide``, checked one by one."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Sequence

from engines.sampling.params import Guide, SamplingParams
from protos.firsttoken.v1 import generation_pb2 as pb
from server.errors import InvalidRequestError
from server.rpc.limits import RequestLimits
from server.rpc.prompts import check_ids

MAX_TEMPERATURE = 100.0
MAX_PENALTY = 100.0
MAX_NGRAM = 64


def check_sampling(sampling: pb.Sampling, limits: RequestLimits) -> SamplingParams:
    """How tokens are drawn, but bad words, which the tokenizer must read first. Raises InvalidRequestError."""
    top_p = sampling.top_p if sampling.HasField("top_p") else 1.0
    if not 0 < top_p <= 1:
        raise InvalidRequestError("sampling.top_p", f"must be above 0 and at most 1, it is {top_p:g}")
    if sampling.top_k < 0:
        raise InvalidRequestError("sampling.top_k", f"must be at least 0, it is {sampling.top_k}")
    check_bad_words(sampling.bad_words, limits)
    return SamplingParams(
        temperature=_within("sampling.temperature", sampling.temperature, 0.0, MAX_TEMPERATURE),
        top_k=sampling.top_k,
        top_p=top_p,
        min_p=_within("sampling.min_p", sampling.min_p, 0.0, 1.0),
        seed=sampling.seed if sampling.HasField("seed") else secrets.randbits(64),
        logit_bias=_logit_bias(sampling, limits),
        repetition_penalty=_repetition_penalty(sampling),
        presence_penalty=_within("sampling.presence_penalty", sampling.presence_penalty, -MAX_PENALTY, MAX_PENALTY),
        frequency_penalty=_within("sampling.frequency_penalty", sampling.frequency_penalty, -MAX_PENALTY, MAX_PENALTY),
        no_repeat_ngram=_whole("sampling.no_repeat_ngram", sampling.no_repeat_ngram, 0, MAX_NGRAM),
        bad_tokens=tuple(_bad_tokens(sampling.bad_tokens, limits)),
    )


def check_bad_words(words: Sequence[str], limits: RequestLimits) -> None:
    _count("sampling.bad_words", len(words), limits.max_bad_words)
    for index, word in enumerate(words):
        size = len(word.encode())
        if not 1 <= size <= limits.max_bad_word_size:
            raise InvalidRequestError(
                f"sampling.bad_words[{index}]", f"must have from 1 to {limits.max_bad_word_size} bytes, it has {size}"
            )


def check_logprobs(logprobs: pb.Logprobs, limits: RequestLimits) -> int:
    """How many of the likeliest tokens to report beside each."""
    return _whole("logprobs.top", logprobs.top, 0, limits.max_top_logprobs)


def check_guide(guide: pb.Guide, limits: RequestLimits) -> Guide:
    """A guide of permitted size; whether it compiles is found out off the event loop."""
    kind = guide.WhichOneof("kind")
    if kind is None:
        raise InvalidRequestError("guide", "must set one of json_schema, regex, grammar and choice")
    # Each is a byte at least. Counting the bytes of a million takes its time from everybody.
    _count("guide.choice.options", len(guide.choice.options), limits.max_guide_bytes)
    texts = list(guide.choice.options) if kind == "choice" else [getattr(guide, kind)]
    size = sum(len(text.encode()) for text in texts)
    if not 1 <= size <= limits.max_guide_bytes:
        raise InvalidRequestError(f"guide.{kind}", f"must have from 1 to {limits.max_guide_bytes} bytes, it has {size}")
    if kind == "choice" and not all(texts):
        raise InvalidRequestError(f"guide.choice.options[{texts.index('')}]", "must not be empty")
    return Guide(kind, json.dumps(texts) if kind == "choice" else texts[0])


def _logit_bias(sampling: pb.Sampling, limits: RequestLimits) -> tuple[tuple[int, float], ...]:
    biases = sampling.logit_bias
    _count("sampling.logit_bias", len(biases), limits.max_logit_biases)
    for token, bias in biases.items():
        if not 0 <= token < limits.vocab_size:
            raise InvalidRequestError(
                f"sampling.logit_bias[{token}]", f"the key must be from 0 to {limits.vocab_size - 1}, it is {token}"
            )
        _within(f"sampling.logit_bias[{token}]", bias, -MAX_PENALTY, MAX_PENALTY)
    return tuple(sorted(biases.items()))


def _repetition_penalty(sampling: pb.Sampling) -> float:
    if not sampling.HasField("repetition_penalty"):
        return 1.0
    penalty = sampling.repetition_penalty
    if not 0.0 < penalty <= MAX_PENALTY:
        raise InvalidRequestError(
            "sampling.repetition_penalty", f"must be above 0 and at most {MAX_PENALTY:g}, it is {penalty:g}"
        )
    return float(penalty)


def _bad_tokens(runs: Sequence[pb.TokenIds], limits: RequestLimits) -> Iterable[tuple[int, ...]]:
    _count("sampling.bad_tokens", len(runs), limits.max_bad_words)
    for index, run in enumerate(runs):
        field = f"sampling.bad_tokens[{index}].ids"
        if not 1 <= len(run.ids) <= limits.max_bad_word_size:
            raise InvalidRequestError(
                field, f"must have from 1 to {limits.max_bad_word_size} tokens, it has {len(run.ids)}"
            )
        check_ids(field, run.ids, limits.vocab_size)
        yield tuple(run.ids)


def _within(field: str, value: float, low: float, high: float) -> float:
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidRequestError(field, f"must be from {low:g} to {high:g}, it is {value:g}")
    return float(value)


def _whole(field: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidRequestError(field, f"must be from {low} to {high}, it is {value}")
    return value


def _count(field: str, entries: int, limit: int) -> None:
    if entries > limit:
        raise InvalidRequestError(field, f"must have at most {limit} entries, it has {entries}")
