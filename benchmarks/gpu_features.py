"""Whether each thing that a request may ask for is taken by an executor and does what the contract says: a part of `make gpu-check`."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engines.contract import ExecutorFinish, ExecutorRequest, ExecutorResponse, RequestExecutor, Retention
from engines.sampling.params import Guide, SamplingParams

PATIENCE = 120.0
"""Seconds for one request."""
_TOKENS = 8
_FAVOURED = 7
"""A token that a bias makes the only one."""


@dataclass(frozen=True)
class Feature:
    """``fields`` of a request, and what must be true of its answer."""

    fields: dict[str, Any]
    holds: Callable[[list[ExecutorResponse]], bool] = lambda answer: _tokens(answer) != []


def _tokens(answer: list[ExecutorResponse], sequence: int = 0) -> list[int]:
    return [token for one in answer if one.sequence_index == sequence for token in one.tokens]


def _finish(answer: list[ExecutorResponse]) -> ExecutorFinish | None:
    return next((one.finish for one in answer if one.finish is not None), None)


def _sampled(sampling: SamplingParams) -> dict[str, Any]:
    return {"sampling": sampling}


FEATURES: dict[str, Feature] = {
    "seed and temperature": Feature(
        _sampled(SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, seed=2**63))
    ),
    "penalties": Feature(
        _sampled(SamplingParams(repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5, no_repeat_ngram=3))
    ),
    "least tokens": Feature(_sampled(SamplingParams(min_tokens=4)), lambda answer: len(_tokens(answer)) >= 4),
    "log-probabilities": Feature(
        _sampled(SamplingParams(logprobs=0)),
        lambda answer: (
            len(_tokens(answer)) == sum(len(one.logprobs) for one in answer) > 0
            and all(value <= 0.0 for one in answer for value in one.logprobs)
        ),
    ),
    "two outputs": Feature({"n": 2}, lambda answer: bool(_tokens(answer, 0)) and bool(_tokens(answer, 1))),
    "banned words": Feature(
        _sampled(SamplingParams(bad_tokens=((5,), (6, 7)))), lambda answer: 5 not in _tokens(answer)
    ),
    "stop words": Feature({"stop_sequences": ((5, 6),), "stop_ids": (9,)}),
    "salt": Feature({"salt": 3}),
    "retention": Feature({"retention": (Retention(0, 8, 90, 30.0), Retention(8, None, 10))}),
    "guide: regex": Feature(_sampled(SamplingParams(guide=Guide("regex", "[0-9]+")))),
    "guide: JSON schema": Feature(_sampled(SamplingParams(guide=Guide("json_schema", '{"type": "object"}')))),
    "logit bias": Feature(
        _sampled(SamplingParams(logit_bias=((_FAVOURED, 100.0),))),
        lambda answer: _tokens(answer) == [_FAVOURED] * _TOKENS,
    ),
}


def features_are_taken(executor: RequestExecutor, features: Mapping[str, Feature] = FEATURES) -> dict[str, str]:
    """By feature: "yes", or what happened instead. Each request runs alone, so that one that is refused takes no other with it."""
    return {
        name: _tried(executor, number, feature) for number, (name, feature) in enumerate(features.items(), start=1000)
    }


def _tried(executor: RequestExecutor, number: int, feature: Feature) -> str:
    told = {"sampling": SamplingParams()} | feature.fields
    request = ExecutorRequest(request=number, tokens=array("i", range(10, 40)), max_tokens=_TOKENS, end_ids=(), **told)
    try:
        executor.enqueue([request])
        answer = _answer(executor, number)
    except Exception as error:  # noqa: BLE001 - whatever the library does is the answer
        return f"{type(error).__name__}: {error}"
    failure = next((one.error for one in answer if one.error is not None), None)
    if failure is not None:
        return f"error: {failure}"
    return "yes" if feature.holds(answer) else f"no: {_tokens(answer)}, {_finish(answer)}"


def _answer(executor: RequestExecutor, number: int) -> list[ExecutorResponse]:
    said: list[ExecutorResponse] = []
    end = time.monotonic() + PATIENCE
    while not (said and said[-1].final):
        if time.monotonic() > end:
            raise TimeoutError(f"not over after {PATIENCE:g} s")
        said += [one for one in executor.await_responses(0.5) if one.request == number]
    return said
