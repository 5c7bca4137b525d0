"""Limits hold at the edge and one beyond."""

from __future__ import annotations

import random

import pytest

from server.access.quotas import Lease, Quotas
from server.access.tenant import EVERYONE, Tenant
from server.errors import InvalidRequestError, OverloadedError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def refusal(quotas: Quotas, tenant: Tenant) -> tuple[str, float]:
    with pytest.raises(OverloadedError) as caught:
        quotas.enter(tenant)
    return caught.value.reason, caught.value.retry_after


def test_requests_per_minute_at_the_edge() -> None:
    clock = Clock()
    quotas, tenant = Quotas(clock), Tenant("t", requests_per_minute=3)
    for _ in range(3):
        quotas.enter(tenant).end(0)
    assert refusal(quotas, tenant) == ("tenant_requests", 20.0)
    clock.now += 19.9
    assert refusal(quotas, tenant)[0] == "tenant_requests"
    clock.now += 0.1
    quotas.enter(tenant).end(0)
    quotas.enter(Tenant("other", requests_per_minute=3)).end(0)  # another's allowance is another's


def test_concurrency_at_the_edge_and_a_refusal_costs_nothing() -> None:
    quotas, tenant = Quotas(Clock()), Tenant("t", max_concurrent=2, requests_per_minute=3)
    leases = [quotas.enter(tenant), quotas.enter(tenant)]
    for _ in range(5):
        assert refusal(quotas, tenant)[0] == "tenant_concurrency"
    leases[0].end(0)
    leases[0].end(0)  # idempotent
    assert quotas.running(tenant) == 1
    quotas.enter(tenant)


def test_tokens_are_set_aside_for_the_worst_case_and_given_back() -> None:
    clock = Clock()
    quotas, tenant = Quotas(clock), Tenant("t", tokens_per_minute=100)
    first, second = quotas.enter(tenant), quotas.enter(tenant)
    first.reserve(60)
    with pytest.raises(OverloadedError) as caught:
        second.reserve(41)
    assert caught.value.reason == "tenant_tokens"
    assert caught.value.retry_after == pytest.approx(0.6)
    second.reserve(40)
    first.end(10)
    third = quotas.enter(tenant)
    with pytest.raises(OverloadedError):
        third.reserve(51)
    third.reserve(50)
    with pytest.raises(InvalidRequestError, match=r"max_tokens: .* 101 tokens, your limit is 100"):
        quotas.enter(tenant).reserve(101)


def test_nobody_without_limits_is_held() -> None:
    quotas = Quotas(Clock())
    for _ in range(1000):
        quotas.enter(EVERYONE).reserve(10**9)
    assert quotas.running(EVERYONE) == 1000


@pytest.mark.parametrize("seed", range(20))
def test_no_window_ever_sees_more_than_its_share(seed: int) -> None:
    """Whatever comes when: tokens used in any t seconds never exceed size * (1 + t / 60)."""
    rng, clock = random.Random(seed), Clock()  # noqa: S311 - a test's dice
    size = rng.randint(50, 500)
    quotas, tenant = Quotas(clock), Tenant("t", tokens_per_minute=size, requests_per_minute=size, max_concurrent=5)
    used: list[tuple[float, int]] = []
    open_leases: list[Lease] = []
    for _ in range(400):
        clock.now += rng.expovariate(2.0)
        if open_leases and rng.random() < 0.4:
            open_leases.pop(rng.randrange(len(open_leases))).end(0)
        try:
            lease = quotas.enter(tenant)
        except OverloadedError:
            continue
        tokens = rng.randint(1, size)
        try:
            lease.reserve(tokens)
        except OverloadedError:
            lease.end(0)
            continue
        used.append((clock.now, tokens))
        lease.end(tokens)  # all of it used
        quotas.check_integrity()
    assert len(used) > 10
    for place, (begin, _) in enumerate(used):
        total = 0
        for at, tokens in used[place:]:
            total += tokens
            assert total <= size * (1 + (at - begin) / 60) + 1e-6
