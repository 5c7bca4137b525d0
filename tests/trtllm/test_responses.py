"""Responses of the library: sequence end against request end, late words, errors, and what releases are at odds about."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from engines.contract import ExecutorFinish, ExecutorRequest
from engines.sampling.params import SamplingParams
from engines.trtllm.responses import OpenRequest
from tests.trtllm.fake_site.tensorrt_llm.bindings import executor as fake


def opened(n: int = 1, **fields: Any) -> OpenRequest:
    told: dict[str, Any] = {"sampling": SamplingParams(), "end_ids": (2, 3)} | fields
    request = ExecutorRequest(request=7, tokens=array("i", range(1, 41)), max_tokens=9, n=n, **told)
    return OpenRequest(request, block_size=8, library_id=1001)


def response(tokens: list[int], finish: str = "NOT_FINISHED", **fields: Any) -> Any:
    ended = finish != "NOT_FINISHED"
    told = {
        "is_final": ended,
        "output_token_ids": [tokens],
        "log_probs": None,
        "finish_reasons": [fake.FinishReason[finish]],
        "sequence_index": 0,
        "is_sequence_final": ended,
        "request_perf_metrics": None,
    }
    return fake.Response(1001, 7, fake.Result(**(told | fields)))


def test_a_token_and_an_end() -> None:
    one = opened()
    (said,) = one.translate(response([5]))
    assert (said.request, said.tokens, said.finish, said.final) == (7, (5,), None, False)
    (said,) = one.translate(response([6], "LENGTH"))
    assert (said.tokens, said.finish, said.final) == ((6,), ExecutorFinish.LENGTH, True)


def test_an_end_id_that_travelled_as_a_stop_word_gets_its_name_back() -> None:
    assert opened().translate(response([3], "STOP_WORDS"))[0].finish is ExecutorFinish.END_ID
    assert opened().translate(response([9], "STOP_WORDS"))[0].finish is ExecutorFinish.STOP_WORDS


def test_a_stop_id_that_travelled_as_the_end_gets_its_name_back() -> None:
    (said,) = opened(end_ids=(), stop_ids=(11,)).translate(response([5, 11], "END_ID"))
    assert said.finish is ExecutorFinish.STOP_WORDS


def test_sequences_end_one_by_one_and_the_request_with_the_last() -> None:
    three = opened(n=3)
    (said,) = three.translate(response([5], "END_ID", sequence_index=1, is_final=False))
    assert (said.sequence_index, said.finish, said.final) == (1, ExecutorFinish.END_ID, False)
    (said,) = three.translate(response([5], "LENGTH", sequence_index=0, is_final=False))
    assert not said.final
    (said,) = three.translate(response([5], "LENGTH", sequence_index=2))
    assert (said.sequence_index, said.finish, said.final) == (2, ExecutorFinish.LENGTH, True)


def test_one_final_word_ends_every_sequence_that_is_still_open() -> None:
    three = opened(n=3)
    three.translate(response([5], "LENGTH", sequence_index=1, is_final=False))
    said = three.translate(response([], "CANCELLED", sequence_index=0))
    assert [(one.sequence_index, one.finish) for one in said] == [
        (0, ExecutorFinish.CANCELLED),
        (2, ExecutorFinish.CANCELLED),
    ]
    assert [one.final for one in said] == [False, True]


def test_a_final_word_without_a_reason_is_no_success() -> None:
    """The feed takes an end without a reason for a failure; only after a cancel of ours is it known what it means."""
    (said,) = opened().translate(response([], is_final=True))
    assert (said.finish, said.final) == (None, True)
    wished = opened()
    wished.cancelled = True
    (said,) = wished.translate(response([], is_final=True))
    assert said.finish is ExecutorFinish.CANCELLED


def test_an_error_ends_the_request_with_its_meaning() -> None:
    (said,) = opened().translate(fake.Response(1001, 7, error_msg="CUDA error: out of memory\nat line 1"))
    assert said.final
    assert said.error is not None
    assert said.error.startswith("the GPU ran out of memory")
    assert "\n" not in said.error


@pytest.mark.parametrize("listed", [[-0.5, -0.25], [-0.5]])
def test_log_probabilities_are_the_new_ones_whether_or_not_the_list_grows(listed: list[float]) -> None:
    one = opened(sampling=SamplingParams(logprobs=0))
    (said,) = one.translate(response([6], log_probs=[listed]))
    assert said.logprobs == (listed[-1],)
    assert opened().translate(response([6], log_probs=[listed]))[0].logprobs == ()


@pytest.mark.parametrize(("reused", "cached"), [(0, 0), (3, 24), (5, 39)])
def test_reuse_is_told_in_tokens_and_never_covers_the_last_one(reused: int, cached: int) -> None:
    metrics = fake.RequestPerfMetrics(fake.KvCacheMetrics(num_reused_blocks=reused))
    (said,) = opened().translate(response([6], "LENGTH", request_perf_metrics=metrics))
    assert said.cached_tokens == cached
