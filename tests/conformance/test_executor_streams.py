"""What every request executor must do with a request: stream, end exactly once, cancel, reserve, reuse."""

from __future__ import annotations

from engines.contract import ExecutorFinish
from engines.sampling.params import SamplingParams
from tests.conformance.executor_cases import END_ID, Client, Make, make_text

# ------------------------------------------------------------------ streams


def test_tokens_stream_one_by_one_and_end_once(make: Make) -> None:
    client = make(64, 8)
    (answers,) = client.run(client.request(make_text(1, 20), 10))
    assert [len(response.tokens) for response in answers.responses] == [1] * 10
    assert [response.final for response in answers.responses] == [False] * 9 + [True]
    assert [response.finish for response in answers.responses] == [None] * 9 + [ExecutorFinish.LENGTH]


def test_batch_mates_change_nothing(make: Make) -> None:
    client = make(64, 8)
    prompts = [make_text(seed, 5 + 9 * seed) for seed in range(6)]
    together = client.run(*(client.request(prompt, 12) for prompt in prompts))
    for prompt, answers in zip(prompts, together, strict=True):
        (alone,) = client.run(client.request(prompt, 12, salt=len(prompt)))
        assert alone.tokens() == answers.tokens()


def test_end_ids_and_stop_ids_end_a_sequence_with_their_names(make: Make) -> None:
    client = make(64, 8)
    (free,) = client.run(client.request(make_text(2, 9), 200))
    said = free.tokens()
    assert free.finish() is ExecutorFinish.LENGTH
    end = said.index(END_ID)
    (ended, stopped) = client.run(
        client.request(make_text(2, 9), 200, end_ids=(END_ID,)),
        client.request(make_text(2, 9), 200, stop_ids=(said[3],)),
    )
    assert (ended.tokens(), ended.finish()) == (said[: end + 1], ExecutorFinish.END_ID)
    first = said.index(said[3])
    assert (stopped.tokens(), stopped.finish()) == (said[: first + 1], ExecutorFinish.STOP_WORDS)


def test_n_sequences_end_one_by_one_and_the_request_with_the_last(make: Make) -> None:
    client = make(64, 8)
    warm = SamplingParams(temperature=1.0, seed=4)
    (answers,) = client.run(client.request(make_text(3, 12), 150, n=3, end_ids=(END_ID,), sampling=warm))
    outputs = [answers.tokens(index) for index in range(3)]
    assert all(answers.finish(index) is not None for index in range(3))
    assert len({tuple(output) for output in outputs}) == 3
    assert [response.final for response in answers.responses].count(True) == 1
    assert answers.responses[-1].final
    (again,) = client.run(client.request(make_text(3, 12), 150, n=3, end_ids=(END_ID,), sampling=warm))
    assert [again.tokens(index) for index in range(3)] == outputs


def test_waiting_for_nothing_returns_nothing(make: Make) -> None:
    client = make(64, 8)
    assert client.executor.await_responses(0.01) == []
    client.run(client.request(make_text(4, 3), 2))
    assert client.executor.await_responses(0.01) == []


# ------------------------------------------------------------------ cancel and time


def test_a_running_request_is_cancelled_with_late_tokens_at_most(make: Make) -> None:
    """case_D1: asynchronous: tokens may come until the final response, none after it; then the seat and blocks are free."""
    client = make(64, 1)
    request, other = client.request(make_text(5, 10), 200), client.request(make_text(6, 10), 5)
    client.executor.enqueue([request, other])
    client.until(lambda: len(client.answers[request.request].tokens()) >= 3)
    client.executor.cancel(request.request)
    client.executor.cancel(request.request)
    cancelled, served = client.finish(request, other)
    assert cancelled.finish() is ExecutorFinish.CANCELLED
    assert 3 <= len(cancelled.tokens()) < 200
    assert served.finish() is ExecutorFinish.LENGTH
    assert client.executor.stats().used_blocks == 0


def test_a_queued_request_is_cancelled_without_a_token(make: Make) -> None:
    client = make(64, 1)
    running, queued = client.request(make_text(7, 10), 100), client.request(make_text(8, 10), 5)
    client.executor.enqueue([running, queued])
    client.executor.cancel(queued.request)
    (answers,) = client.finish(queued)
    assert (answers.tokens(), answers.finish()) == ([], ExecutorFinish.CANCELLED)
    assert not client.answers[running.request].over
    client.finish(running)


def test_every_sequence_of_a_cancelled_request_is_told(make: Make) -> None:
    client = make(64, 8)
    request = client.request(make_text(9, 10), 100, n=3)
    client.executor.enqueue([request])
    client.until(lambda: len(client.answers[request.request].responses) >= 6)
    client.executor.cancel(request.request)
    (answers,) = client.finish(request)
    assert [answers.finish(index) for index in range(3)] == [ExecutorFinish.CANCELLED] * 3


def test_unknown_and_ended_requests_are_cancelled_in_silence(make: Make) -> None:
    client = make(64, 8)
    request = client.request(make_text(10, 4), 2)
    client.run(request)
    client.executor.cancel(request.request)
    client.executor.cancel(12345)
    assert client.executor.await_responses(0.01) == []


def test_allotted_time_ends_a_request(make: Make) -> None:
    """case_E2: also one that only waits."""
    client = make(64, 1)
    running = client.request(make_text(11, 10), 240, allotted_ms=20)
    queued = client.request(make_text(12, 10), 5, allotted_ms=1)
    answers, waiting = client.run(running, queued)
    assert answers.finish() is ExecutorFinish.TIMED_OUT
    # How many came in the time is the machine's affair.
    assert len(answers.tokens()) < 240
    assert (waiting.tokens(), waiting.finish()) == ([], ExecutorFinish.TIMED_OUT)


# ------------------------------------------------------------------ order and reservation


def starts(client: Client) -> list[int]:
    """Requests in the order of their first tokens."""
    return list(dict.fromkeys(response.request for response in client.order if response.tokens))


def test_priority_goes_before_arrival_and_arrival_before_nothing(make: Make) -> None:
    client = make(64, 1)
    priorities = (0.5, 0.1, 0.9, 0.5, 0.9)
    first = client.request(make_text(13, 4), 30)
    client.executor.enqueue([first])
    client.until(lambda: bool(client.answers[first.request].responses))
    requests = [client.request(make_text(seed, 4), 2, priority=p) for seed, p in enumerate(priorities)]
    client.run(*requests)
    assert starts(client) == [first.request, *(requests[at].request for at in (2, 4, 0, 3, 1))]


def test_the_worst_case_is_reserved(make: Make) -> None:
    """case_C3: 16 blocks; each request may need 9: the second begins after the first has ended, though blocks are free."""
    client = make(16, 8)
    first, second = client.request(make_text(14, 8), 64), client.request(make_text(15, 8), 64)
    client.run(first, second)
    ends = [at for at, response in enumerate(client.order) if response.final]
    begin = next(at for at, response in enumerate(client.order) if response.request == second.request)
    assert ends[0] < begin


def test_the_first_that_does_not_fit_blocks_the_queue(make: Make) -> None:
    client = make(16, 8)
    requests = [
        client.request(make_text(16, 8), 64),
        client.request(make_text(17, 8), 64),
        client.request(make_text(18, 8), 4),
    ]
    client.run(*requests)
    assert starts(client) == [request.request for request in requests]


# ------------------------------------------------------------------ reuse


def test_a_repeated_prompt_is_reused_and_says_the_same(make: Make) -> None:
    client = make(64, 8)
    prompt = make_text(19, 40)
    (first,) = client.run(client.request(prompt, 6))
    (second,) = client.run(client.request(prompt, 6))
    assert first.cached_tokens == 0
    # 40 tokens are 5 full blocks of 8; the last holds the last token, which is always computed.
    assert second.cached_tokens == 32
    assert second.tokens() == first.tokens()
    stats = client.executor.stats()
    assert (stats.reused_blocks, stats.missed_blocks) == (4, 4)


def test_what_was_generated_is_reused_too(make: Make) -> None:
    client = make(64, 8)
    (first,) = client.run(client.request(make_text(20, 8), 20))
    (second,) = client.run(client.request([*make_text(20, 8), *first.tokens()], 3))
    assert second.cached_tokens == 24


def test_a_salt_keeps_reuse_apart(make: Make) -> None:
    """case_F7: nothing of another salt's prompt is found."""
    client = make(64, 8)
    prompt = make_text(21, 40)
    client.run(client.request(prompt, 2, salt=1))
    (other, none, same) = [client.run(client.request(prompt, 2, salt=salt))[0].cached_tokens for salt in (2, None, 1)]
    assert (other, none, same) == (0, 0, 32)


def test_cached_blocks_give_way_to_running_ones(make: Make) -> None:
    client = make(16, 8)
    client.run(client.request(make_text(22, 60), 4))
    (answers,) = client.run(client.request(make_text(23, 60), 60))
    assert len(answers.tokens()) == 60
    (again,) = client.run(client.request(make_text(22, 60), 4))
    assert again.cached_tokens is not None
    assert again.cached_tokens < 56
