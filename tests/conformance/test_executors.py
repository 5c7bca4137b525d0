"""What every request executor must do: stream, end exactly once, cancel, reserve, reuse, refuse, close."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest

from engines.contract import EngineDeadError, ExecutorFinish, ExecutorRequest, PlanError
from engines.sampling.params import SamplingParams
from tests.conformance.executor_cases import END_ID, Client, ExecutorCase, executor_cases

Make = Callable[[int, int], Client]


@pytest.fixture(params=executor_cases(), ids=str)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    case: ExecutorCase = request.param
    clients: list[Client] = []

    def make_client(blocks: int = 64, batch: int = 8) -> Client:
        clients.append(Client(case.make(blocks, batch)))
        return clients[-1]

    yield make_client
    for client in clients:
        client.executor.close()


def text(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)  # noqa: S311 - the same texts every run
    return [draw.randrange(3, 300) for _ in range(length)]


# ------------------------------------------------------------------ streams


def test_tokens_stream_one_by_one_and_end_once(make: Make) -> None:
    client = make(64, 8)
    (answers,) = client.run(client.request(text(1, 20), 10))
    assert [len(response.tokens) for response in answers.responses] == [1] * 10
    assert [response.final for response in answers.responses] == [False] * 9 + [True]
    assert [response.finish for response in answers.responses] == [None] * 9 + [ExecutorFinish.LENGTH]


def test_batch_mates_change_nothing(make: Make) -> None:
    client = make(64, 8)
    prompts = [text(seed, 5 + 9 * seed) for seed in range(6)]
    together = client.run(*(client.request(prompt, 12) for prompt in prompts))
    for prompt, answers in zip(prompts, together, strict=True):
        (alone,) = client.run(client.request(prompt, 12, salt=len(prompt)))
        assert alone.tokens() == answers.tokens()


def test_end_ids_and_stop_ids_end_a_sequence_with_their_names(make: Make) -> None:
    client = make(64, 8)
    (free,) = client.run(client.request(text(2, 9), 200))
    said = free.tokens()
    assert free.finish() is ExecutorFinish.LENGTH
    end = said.index(END_ID)
    (ended, stopped) = client.run(
        client.request(text(2, 9), 200, end_ids=(END_ID,)), client.request(text(2, 9), 200, stop_ids=(said[3],))
    )
    assert (ended.tokens(), ended.finish()) == (said[: end + 1], ExecutorFinish.END_ID)
    first = said.index(said[3])
    assert (stopped.tokens(), stopped.finish()) == (said[: first + 1], ExecutorFinish.STOP_WORDS)


def test_n_sequences_end_one_by_one_and_the_request_with_the_last(make: Make) -> None:
    client = make(64, 8)
    warm = SamplingParams(temperature=1.0, seed=4)
    (answers,) = client.run(client.request(text(3, 12), 150, n=3, end_ids=(END_ID,), sampling=warm))
    outputs = [answers.tokens(index) for index in range(3)]
    assert all(answers.finish(index) is not None for index in range(3))
    assert len({tuple(output) for output in outputs}) == 3
    assert [response.final for response in answers.responses].count(True) == 1
    assert answers.responses[-1].final
    (again,) = client.run(client.request(text(3, 12), 150, n=3, end_ids=(END_ID,), sampling=warm))
    assert [again.tokens(index) for index in range(3)] == outputs


def test_waiting_for_nothing_returns_nothing(make: Make) -> None:
    client = make(64, 8)
    assert client.executor.await_responses(0.01) == []
    client.run(client.request(text(4, 3), 2))
    assert client.executor.await_responses(0.01) == []


# ------------------------------------------------------------------ cancel and time


def test_a_running_request_is_cancelled_with_late_tokens_at_most(make: Make) -> None:
    """case_D1: asynchronous: tokens may come until the final response, none after it; then the seat and blocks are free."""
    client = make(64, 1)
    request, other = client.request(text(5, 10), 200), client.request(text(6, 10), 5)
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
    running, queued = client.request(text(7, 10), 100), client.request(text(8, 10), 5)
    client.executor.enqueue([running, queued])
    client.executor.cancel(queued.request)
    (answers,) = client.finish(queued)
    assert (answers.tokens(), answers.finish()) == ([], ExecutorFinish.CANCELLED)
    assert not client.answers[running.request].over
    client.finish(running)


def test_every_sequence_of_a_cancelled_request_is_told(make: Make) -> None:
    client = make(64, 8)
    request = client.request(text(9, 10), 100, n=3)
    client.executor.enqueue([request])
    client.until(lambda: len(client.answers[request.request].responses) >= 6)
    client.executor.cancel(request.request)
    (answers,) = client.finish(request)
    assert [answers.finish(index) for index in range(3)] == [ExecutorFinish.CANCELLED] * 3


def test_unknown_and_ended_requests_are_cancelled_in_silence(make: Make) -> None:
    client = make(64, 8)
    request = client.request(text(10, 4), 2)
    client.run(request)
    client.executor.cancel(request.request)
    client.executor.cancel(12345)
    assert client.executor.await_responses(0.01) == []


def test_allotted_time_ends_a_request(make: Make) -> None:
    """case_E2: also one that only waits."""
    client = make(64, 1)
    running = client.request(text(11, 10), 240, allotted_ms=20)
    queued = client.request(text(12, 10), 5, allotted_ms=1)
    answers, waiting = client.run(running, queued)
    assert answers.finish() is ExecutorFinish.TIMED_OUT
    assert 0 < len(answers.tokens()) < 240
    assert (waiting.tokens(), waiting.finish()) == ([], ExecutorFinish.TIMED_OUT)


# ------------------------------------------------------------------ order and reservation


def starts(client: Client) -> list[int]:
    """Requests in the order of their first tokens."""
    return list(dict.fromkeys(response.request for response in client.order if response.tokens))


def test_priority_goes_before_arrival_and_arrival_before_nothing(make: Make) -> None:
    client = make(64, 1)
    priorities = (0.5, 0.1, 0.9, 0.5, 0.9)
    first = client.request(text(13, 4), 30)
    client.executor.enqueue([first])
    client.until(lambda: bool(client.answers[first.request].responses))
    requests = [client.request(text(seed, 4), 2, priority=p) for seed, p in enumerate(priorities)]
    client.run(*requests)
    assert starts(client) == [first.request, *(requests[at].request for at in (2, 4, 0, 3, 1))]


def test_the_worst_case_is_reserved(make: Make) -> None:
    """case_C3: 16 blocks; each request may need 9: the second begins after the first has ended, though blocks are free."""
    client = make(16, 8)
    first, second = client.request(text(14, 8), 64), client.request(text(15, 8), 64)
    client.run(first, second)
    ends = [at for at, response in enumerate(client.order) if response.final]
    begin = next(at for at, response in enumerate(client.order) if response.request == second.request)
    assert ends[0] < begin


def test_the_first_that_does_not_fit_blocks_the_queue(make: Make) -> None:
    client = make(16, 8)
    requests = [client.request(text(16, 8), 64), client.request(text(17, 8), 64), client.request(text(18, 8), 4)]
    client.run(*requests)
    assert starts(client) == [request.request for request in requests]


# ------------------------------------------------------------------ reuse


def test_a_repeated_prompt_is_reused_and_says_the_same(make: Make) -> None:
    client = make(64, 8)
    prompt = text(19, 40)
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
    (first,) = client.run(client.request(text(20, 8), 20))
    (second,) = client.run(client.request([*text(20, 8), *first.tokens()], 3))
    assert second.cached_tokens == 24


def test_a_salt_keeps_reuse_apart(make: Make) -> None:
    """case_F7: nothing of another salt's prompt is found."""
    client = make(64, 8)
    prompt = text(21, 40)
    client.run(client.request(prompt, 2, salt=1))
    (other, none, same) = [client.run(client.request(prompt, 2, salt=salt))[0].cached_tokens for salt in (2, None, 1)]
    assert (other, none, same) == (0, 0, 32)


def test_cached_blocks_give_way_to_running_ones(make: Make) -> None:
    client = make(16, 8)
    client.run(client.request(text(22, 60), 4))
    (answers,) = client.run(client.request(text(23, 60), 60))
    assert len(answers.tokens()) == 60
    (again,) = client.run(client.request(text(22, 60), 4))
    assert again.cached_tokens is not None
    assert again.cached_tokens < 56


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prompt": []}, "tokens"),
        ({"prompt": [300]}, "tokens"),
        ({"prompt": [-1]}, "tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 254}, "max_tokens"),
        ({"n": 0}, "n must"),
        ({"n": 9}, "n must"),
        ({"priority": 1.5}, "priority"),
        ({"priority": float("nan")}, "priority"),
        ({"allotted_ms": 0}, "allotted_ms"),
        ({"end_ids": (300,)}, "end and stop ids"),
        ({"stop_ids": (-1,)}, "end and stop ids"),
        ({"n": 4, "max_tokens": 200}, "blocks"),
    ],
)
def test_a_bad_request_is_refused_with_all_that_came_with_it(make: Make, change: dict[str, object], field: str) -> None:
    """case_M1, case_M2, case_M7: the executor is untouched."""
    client = make(64, 8)
    good = client.request(text(24, 3), 3)
    prompt = change.get("prompt", [1, 2, 3])
    bad = client.request(**({"prompt": prompt, "max_tokens": 3} | change))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=f"request {bad.request}: .*{field}"):
        client.executor.enqueue([good, bad])
    assert client.executor.stats().queued + client.executor.stats().active == 0
    client.run(good)


def test_an_id_in_use_is_refused(make: Make) -> None:
    client = make(64, 8)
    request = client.request(text(25, 3), 100)
    client.executor.enqueue([request])
    with pytest.raises(PlanError, match="in use"):
        client.executor.enqueue([request])
    twins = client.request(text(25, 3), 3)
    with pytest.raises(PlanError, match="in use"):
        client.executor.enqueue([twins, twins])


# ------------------------------------------------------------------ load and end


def test_a_burst_with_cancels_ends_every_request_once(make: Make) -> None:
    """case_D8: nothing leaks, nothing is answered twice."""
    client = make(48, 4)
    draw = random.Random(5)  # noqa: S311 - the same burst every run
    requests = [
        client.request(text(seed, draw.randint(1, 60)), draw.randint(1, 40), n=draw.choice((1, 1, 2)))
        for seed in range(60)
    ]
    for request in requests:
        client.executor.enqueue([request])
        if draw.random() < 0.3:
            client.poll(0.0005)
        if draw.random() < 0.3:
            client.executor.cancel(draw.choice(requests).request)
    for request, answers in zip(requests, client.finish(*requests), strict=True):
        for index in range(request.n):
            check_end(request, index, answers.finish(index), answers.tokens(index))
    stats = client.executor.stats()
    assert (stats.active, stats.queued, stats.used_blocks) == (0, 0, 0)


def check_end(request: ExecutorRequest, index: int, finish: ExecutorFinish | None, tokens: list[int]) -> None:
    assert finish in {ExecutorFinish.LENGTH, ExecutorFinish.CANCELLED}, f"sequence {index}"
    if finish is ExecutorFinish.LENGTH:
        assert len(tokens) == request.max_tokens
    else:
        assert len(tokens) < request.max_tokens


def test_closing_under_load_wakes_who_waits(make: Make) -> None:
    client = make(64, 2)
    client.executor.enqueue([client.request(text(seed, 30), 200) for seed in range(8)])
    client.poll()
    died = threading.Event()

    def wait() -> None:
        try:
            while True:
                client.executor.await_responses(10.0)
        except EngineDeadError:
            died.set()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    client.executor.close()
    client.executor.close()
    waiter.join(timeout=10)
    assert died.is_set()
    with pytest.raises(EngineDeadError):
        client.executor.enqueue([client.request(text(1, 3), 3)])
    with pytest.raises(EngineDeadError):
        client.executor.cancel(1)


def test_others_may_enqueue_and_cancel_while_one_waits(make: Make) -> None:
    client = make(64, 4)
    requests = [client.request(text(seed, 5), 20) for seed in range(40)]

    def feed() -> None:
        for request in requests:
            client.executor.enqueue([request])
            if request.request % 3 == 0:
                client.executor.cancel(request.request)

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    answers = client.finish(*requests)
    feeder.join()
    assert all(one.finish() in {ExecutorFinish.LENGTH, ExecutorFinish.CANCELLED} for one in answers)
