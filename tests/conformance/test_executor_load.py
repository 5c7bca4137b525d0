"""What every request executor must refuse, bear, and survive."""

from __future__ import annotations

import random
import threading

import pytest

from engines.contract import EngineDeadError, ExecutorFinish, ExecutorRequest, PlanError
from tests.conformance.executor_cases import Make, make_text

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
    good = client.request(make_text(24, 3), 3)
    prompt = change.get("prompt", [1, 2, 3])
    bad = client.request(**({"prompt": prompt, "max_tokens": 3} | change))  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=f"request {bad.request}: .*{field}"):
        client.executor.enqueue([good, bad])
    assert client.executor.stats().queued + client.executor.stats().active == 0
    client.run(good)


def test_an_id_in_use_is_refused(make: Make) -> None:
    client = make(64, 8)
    request = client.request(make_text(25, 3), 100)
    client.executor.enqueue([request])
    with pytest.raises(PlanError, match="in use"):
        client.executor.enqueue([request])
    twins = client.request(make_text(25, 3), 3)
    with pytest.raises(PlanError, match="in use"):
        client.executor.enqueue([twins, twins])


# ------------------------------------------------------------------ load and end


def test_a_burst_with_cancels_ends_every_request_once(make: Make) -> None:
    """case_D8: nothing leaks, nothing is answered twice."""
    client = make(48, 4)
    draw = random.Random(5)  # noqa: S311 - the same burst every run
    requests = [
        client.request(make_text(seed, draw.randint(1, 60)), draw.randint(1, 40), n=draw.choice((1, 1, 2)))
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
    client.executor.enqueue([client.request(make_text(seed, 30), 200) for seed in range(8)])
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
    waiter.join(timeout=60)
    assert died.is_set()
    with pytest.raises(EngineDeadError):
        client.executor.enqueue([client.request(make_text(1, 3), 3)])
    with pytest.raises(EngineDeadError):
        client.executor.cancel(1)


def test_others_may_enqueue_and_cancel_while_one_waits(make: Make) -> None:
    client = make(64, 4)
    requests = [client.request(make_text(seed, 5), 20) for seed in range(40)]

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
