"""What each field of a request becomes in the library's request."""

from __future__ import annotations

import json
from array import array
from datetime import timedelta
from typing import Any

import pytest

from engines.contract import ExecutorRequest, PlanError, Retention
from engines.sampling.params import Guide, SamplingParams
from engines.trtllm.requests import check_offered, to_request
from tests.trtllm.fake_site.tensorrt_llm.bindings import executor as fake


def translated(sampling: SamplingParams | None = None, **fields: Any) -> Any:
    told: dict[str, Any] = {"request": 7, "max_tokens": 5, "end_ids": (2,)} | fields
    request = ExecutorRequest(tokens=array("i", [4, 5, 6]), sampling=sampling or SamplingParams(), **told)
    check_offered(request)
    return to_request(fake, request, 300)


def test_what_every_request_says() -> None:
    made = translated()
    assert (made.input_token_ids, made.max_tokens, made.streaming) == ([4, 5, 6], 5, True)
    assert made.client_id == 7
    assert made.output_config.exclude_input_from_output
    assert not made.return_all_generated_tokens
    assert (made.end_id, made.stop_words) == (2, None)
    assert (made.allotted_time_ms, made.cache_salt_id, made.lora_config) == (None, None, None)


def test_greedy_is_the_choice_among_one() -> None:
    config = translated(SamplingParams(seed=9)).sampling_config
    assert (config.temperature, config.top_k, config.seed) == (None, 1, 9)


def test_sampling_is_passed_through_and_what_has_no_effect_is_not_told() -> None:
    params = SamplingParams(temperature=0.7, top_k=0, top_p=1.0, min_p=0.1, seed=2**63, repetition_penalty=1.2)
    config = translated(params, n=3).sampling_config
    assert (config.temperature, config.top_k, config.top_p, config.min_p) == (0.7, 0, 1.0, 0.1)
    assert (config.seed, config.repetition_penalty, config.num_return_sequences) == (2**63, 1.2, 3)
    assert (config.presence_penalty, config.no_repeat_ngram_size, config.min_tokens) == (None, None, None)
    shaped = SamplingParams(presence_penalty=0.5, frequency_penalty=-0.5, no_repeat_ngram=3, min_tokens=4)
    config = translated(shaped).sampling_config
    assert (config.presence_penalty, config.frequency_penalty) == (0.5, -0.5)
    assert (config.no_repeat_ngram_size, config.min_tokens) == (3, 4)


def test_stops_bans_and_further_ends() -> None:
    made = translated(
        SamplingParams(bad_tokens=((8,), (9, 10))), end_ids=(2, 3), stop_ids=(11,), stop_sequences=((12, 13),)
    )
    assert (made.end_id, made.stop_words) == (2, [[3], [11], [12, 13]])
    assert made.bad_words == [[8], [9, 10]]


def test_the_one_ending_id_that_is_held_back_travels_as_the_end() -> None:
    held = SamplingParams(min_tokens=3, ending_ids=(11,))
    made = translated(held, end_ids=(), stop_ids=(11,), stop_sequences=((12, 13),))
    assert (made.end_id, made.stop_words, made.sampling_config.min_tokens) == (11, [[12, 13]], 3)
    made = translated(held, end_ids=(2,))
    assert (made.end_id, made.stop_words) == (2, None)


def test_no_end_is_told_where_the_client_ignores_ends() -> None:
    made = translated(end_ids=())
    assert (made.end_id, made.pad_id) == (None, None)


def test_time_priority_salt_adapter_and_retention() -> None:
    stretches = (Retention(0, 2, 90, 1.5), Retention(2, None, 10))
    made = translated(allotted_ms=250, priority=0.9, salt=4, adapter=6, retention=stretches)
    assert (made.allotted_time_ms, made.priority) == (timedelta(milliseconds=250), 0.9)
    assert (made.cache_salt_id, made.lora_config.task_id) == (4, 6)
    first, second = made.kv_cache_retention_config.token_range_retention_configs
    assert (first.token_start, first.token_end, first.priority, first.duration_ms) == (0, 2, 90, timedelta(seconds=1.5))
    assert (second.token_start, second.token_end, second.duration_ms) == (2, None, None)


@pytest.mark.parametrize(
    ("guide", "kind", "text"),
    [
        (Guide("json_schema", "{}"), fake.GuidedDecodingParams.GuideType.JSON_SCHEMA, "{}"),
        (Guide("regex", "a+"), fake.GuidedDecodingParams.GuideType.REGEX, "a+"),
        (Guide("choice", json.dumps(["a.b", "c"])), fake.GuidedDecodingParams.GuideType.REGEX, r"a\.b|c"),
    ],
)
def test_guides(guide: Guide, kind: object, text: str) -> None:
    made = translated(SamplingParams(guide=guide)).guided_decoding_params
    assert (made.guide_type, made.guide) == (kind, text)


def test_log_probabilities_are_asked_for_only_where_wanted() -> None:
    assert not translated().output_config.return_log_probs
    assert translated(SamplingParams(logprobs=0)).output_config.return_log_probs


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sampling": SamplingParams(logprobs=3)}, "request 7: sampling.logprobs must be 0 on TensorRT-LLM.*got 3"),
        ({"sampling": SamplingParams(guide=Guide("grammar", "x"))}, "guide.kind must be one of .*got grammar"),
        (
            {"sampling": SamplingParams(min_tokens=3, ending_ids=(2, 3)), "end_ids": (2, 3)},
            "sampling.min_tokens holds back one ending id on TensorRT-LLM, got 2",
        ),
        ({"salt": 0}, "salt must be at least 1, got 0"),
    ],
)
def test_what_the_library_does_not_have_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        translated(**fields)


def test_logit_bias_is_a_tensor_over_the_vocabulary() -> None:
    pytest.importorskip("torch", reason="TensorRT-LLM brings torch; here it is not installed")
    bias = translated(SamplingParams(logit_bias=((5, 1.5), (7, -2.0)))).embedding_bias
    assert (bias.shape[0], float(bias[5]), float(bias[7]), float(bias.abs().sum())) == (300, 1.5, -2.0, 3.5)
