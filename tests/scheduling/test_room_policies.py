"""Shares of classes, fairness of tenants, aged keys, expected lengths: the waiting room's policies one by one."""

from __future__ import annotations

import random

import pytest

from engines.manifest import StepProfile
from server.engine import GenerationRequest, PriorityClass
from server.scheduling.cost import StepCost
from server.scheduling.lengths import ExpectedLengths, LengthSketch
from server.scheduling.order import AgedByWork
from server.scheduling.shares import ClassShares
from server.scheduling.tenants import ClassQueue
from tests.scheduling.world import make_request

SECOND_PER_TOKEN = StepProfile(
    fixed=1.0,
    per_new_token=1.0,
    per_decode=0.0,
    per_decode_context=0.0,
    per_attention=0.0,
    machine="",
    relative_error=0.0,
)


class Guest:
    def __init__(self, tenant: str, number: int, charge: float) -> None:
        self.key = (0.0, float(number))
        self.waiting_work = self.expected_work = self.seat_tokens = self.expected_output = 1
        self.queued = False
        self.tenant = tenant
        self.charged: float | None = None
        self.expected_charge = charge


# ------------------------------------------------------------------ classes


def test_a_class_that_always_has_work_gets_its_whole_share_of_every_span_that_is_long_enough() -> None:
    bound = 500
    shares = ClassShares((0.0, 0.2, 0.05), bound=bound)
    rng = random.Random(1)  # noqa: S311 - replays
    served, steps = [0, 0, 0], [(0, 0, 0)]
    for _ in range(10_000):
        first = shares.order[0]
        tokens = [0, 0, 0]
        tokens[first] = rng.randint(1, 500)
        served[first] += tokens[first]
        shares.serve(tokens, (True, True, True))
        steps.append((served[0], served[1], served[2]))
    for level, share in ((1, 0.2), (2, 0.05)):
        spans = [
            (sum(last) - sum(first), last[level] - first[level])
            for first in steps[::100]
            for last in steps[::100]
            if sum(last) - sum(first) > 128 * bound / share
        ]
        assert len(spans) > 100
        assert all(share * total <= got <= share * (1 + 1 / 64) * total + 2 * bound for total, got in spans)
    assert served[0] > 0.7 * sum(served)


def test_a_class_without_work_saves_nothing_up() -> None:
    shares = ClassShares((0.0, 0.5, 0.0), bound=10_000)
    for _ in range(100):
        shares.serve((100, 0, 0), (True, False, False))
    assert shares.order == (0, 1, 2)
    shares.serve((100, 0, 0), (True, True, False))
    assert shares.is_owed(1)
    shares.serve((0, 120, 0), (True, True, False))
    assert not shares.is_owed(1)


def test_debts_are_bounded() -> None:
    shares = ClassShares((0.0, 0.5, 0.0), bound=100)
    for _ in range(1000):
        shares.serve((100, 0, 0), (True, True, False))
    shares.serve((0, 300, 0), (True, True, False))
    assert not shares.is_owed(1), "an old debt does not last"


def test_shares_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="below 1"):
        ClassShares((0.0, 0.6, 0.4), bound=1)


# ------------------------------------------------------------------ tenants


def run_queue(floods: dict[str, tuple[int, float]], rounds: int) -> dict[str, float]:
    """Tenants always have work of (requests, tokens each) waiting; how much each was served."""
    queue: ClassQueue[Guest] = ClassQueue(fair=True)
    number = 0
    served = dict.fromkeys(floods, 0.0)

    def come(tenant: str) -> None:
        nonlocal number
        number += 1
        queue.push(Guest(tenant, number, floods[tenant][1]))

    for tenant, (count, _) in floods.items():
        for _ in range(count):
            come(tenant)
    for _ in range(rounds):
        guest = queue.take()
        served[guest.tenant] += guest.expected_charge
        queue.settle(guest, guest.expected_charge)
        come(guest.tenant)
        queue.check_integrity(0)
    return served


def test_tenants_that_always_wait_are_served_alike_within_the_greatest_request_case_E11() -> None:
    served = run_queue({"flood": (500, 10.0), "quiet": (1, 30.0), "other": (3, 7.0)}, 2000)
    assert max(served.values()) - min(served.values()) <= 2 * 30.0


def test_who_comes_back_starts_where_the_others_are() -> None:
    queue: ClassQueue[Guest] = ClassQueue(fair=True)
    for number in range(100):
        queue.push(Guest("busy", number, 10.0))
    for _ in range(50):
        queue.take()
    for number in range(100, 150):
        queue.push(Guest("late", number, 10.0))
    order = "".join(queue.take().tenant[0] for _ in range(20))
    assert order.count("l") <= 11, "fifty idle turns are not owed"


def test_who_comes_back_may_go_before_its_turn_by_the_burst_and_no_more() -> None:
    queue: ClassQueue[Guest] = ClassQueue(fair=True, burst=30.0)
    for number in range(100):
        queue.push(Guest("busy", number, 10.0))
    for _ in range(50):
        queue.take()
    for number in range(100, 150):
        queue.push(Guest("late", number, 10.0))
    order = "".join(queue.take().tenant[0] for _ in range(20))
    assert order.startswith("lll")
    assert order.count("l") <= 12


def test_what_a_request_took_less_than_expected_is_given_back() -> None:
    queue: ClassQueue[Guest] = ClassQueue(fair=True)
    long, short = Guest("a", 1, 1000.0), Guest("b", 2, 10.0)
    for guest in (long, short, Guest("a", 3, 10.0), Guest("b", 4, 10.0), Guest("b", 5, 10.0)):
        queue.push(guest)
    assert queue.take() is long
    assert queue.take() is short
    queue.settle(long, 1.0)
    assert queue.take().tenant == "a"


def test_a_preempted_request_is_charged_once() -> None:
    queue: ClassQueue[Guest] = ClassQueue(fair=True)
    guest = Guest("a", 1, 10.0)
    queue.push(guest)
    for _ in range(5):
        queue.push(queue.take())
    queue.push(Guest("b", 2, 10.0))
    queue.push(Guest("a", 3, 10.0))
    assert queue.take() is guest
    assert queue.take().tenant == "b", "a stands at 10 where b came in, at 10 too, and b's is the older key"


def test_a_hundred_thousand_strangers_leave_nothing_behind() -> None:
    queue: ClassQueue[Guest] = ClassQueue(fair=True)
    for number in range(20_000):
        queue.push(Guest(f"stranger {number}", number, 5.0))
        guest = queue.take()
        queue.settle(guest, 5.0)
    assert len(queue._tenants) <= 4096
    queue.check_integrity(0)


def test_without_fairness_keys_alone_decide() -> None:
    queue: ClassQueue[Guest] = ClassQueue(fair=False)
    for number, tenant in enumerate("aaab"):
        queue.push(Guest(tenant, number, 10.0))
    assert "".join(queue.take().tenant for _ in range(4)) == "aaab"


# ------------------------------------------------------------------ order


def aged(weight: float = 2.0) -> AgedByWork:
    return AgedByWork(StepCost(SECOND_PER_TOKEN), targets=(1.0, 10.0, 100.0), per_token=0.5, weight=weight)


def rank(request: GenerationRequest, weight: float = 2.0) -> float:
    return aged(weight).rank(request, len(request.prompt), 0.0)


def test_short_work_passes_long_work_but_not_for_ever_case_C2_E5() -> None:
    long = make_request(1, [3] * 100, arrival=0.0, priority=PriorityClass.INTERACTIVE)
    soon, late = (
        make_request(2, [3] * 10, arrival=arrival, priority=PriorityClass.INTERACTIVE) for arrival in (200.0, 230.0)
    )
    # 90 tokens less: 90 s of work at weight 2, and due 45 s sooner.
    assert rank(soon) < rank(long) < rank(late)


def test_an_explicit_deadline_counts_where_it_is_earlier_than_the_class_s() -> None:
    batch = [
        make_request(1, [3] * 4, priority=PriorityClass.BATCH, ttft_deadline=deadline)
        for deadline in (None, 5.0, 500.0)
    ]
    none, early, late = (rank(request) for request in batch)
    assert early == pytest.approx(5.0 + 2.0 * 4)
    assert none == late == pytest.approx(100.0 + 2.0 + 2.0 * 4)


def test_cached_tokens_are_no_work() -> None:
    request = make_request(1, [3] * 100)
    assert aged().rank(request, 5, 0.0) < aged().rank(request, 100, 0.0)


# ------------------------------------------------------------------ lengths


def test_the_sketch_s_quantile_is_within_its_buckets() -> None:
    rng = random.Random(7)  # noqa: S311 - replays
    sketch, seen = LengthSketch(0.5), []
    for _ in range(400):
        seen.append(max(1, int(rng.lognormvariate(5.0, 1.0))))
        sketch.add(seen[-1])
    truth = sorted(seen)[len(seen) // 2]
    assert truth / 1.2 <= sketch.typical <= truth * 1.2


def test_the_sketch_follows_the_traffic() -> None:
    sketch = LengthSketch(0.5)
    for _ in range(2000):
        sketch.add(1000)
    for _ in range(1500):
        sketch.add(10)
    assert sketch.typical < 12


def test_nothing_is_expected_beyond_max_tokens_and_nothing_less_until_something_is_known() -> None:
    lengths = ExpectedLengths(0.5)
    request = make_request(1, [3], 50, tenant="a")
    assert lengths.expect(request) == 50.0
    for _ in range(20):
        lengths.observe(request, 10)
    assert 8.0 <= lengths.expect(request) <= 12.0
    assert lengths.expect(make_request(2, [3], 4, tenant="a")) == 4.0


def test_who_went_on_for_long_is_expected_to_be_like_those_who_did() -> None:
    """Half of the answers take 10 tokens, a third 100, the rest 1,000."""
    lengths, request = ExpectedLengths(0.5), make_request(1, [3], 5000, tenant="a")
    assert lengths.rest(request, 4000) == 1000.0  # nothing is known: up to max_tokens
    for number in range(120):
        lengths.observe(request, (10, 10, 10, 100, 100, 1000)[number % 6])
    assert lengths.rest(request, 0) == pytest.approx(10, rel=0.2)
    assert lengths.rest(request, 30) == pytest.approx(100 - 30, rel=0.25)
    assert lengths.rest(request, 200) == pytest.approx(1000 - 200, rel=0.25)
    assert lengths.rest(request, 3000) == 1000.0  # none went on for so long: half of what is left
    assert lengths.rest(make_request(2, [3], 50, tenant="a"), 30) == 20.0  # never beyond max_tokens


def test_a_new_tenant_is_expected_to_be_like_its_class() -> None:
    lengths = ExpectedLengths(0.5)
    for number in range(20):
        lengths.observe(make_request(number, [3], 5000, tenant="chat"), 10)
        lengths.observe(make_request(number, [3], 5000, tenant="essays", priority=PriorityClass.BATCH), 1000)
    assert lengths.expect(make_request(1, [3], 5000, tenant="new")) < 20
    assert lengths.expect(make_request(1, [3], 5000, tenant="new", priority=PriorityClass.BATCH)) > 500


def test_tenants_beyond_a_few_thousand_are_forgotten_oldest_first() -> None:
    lengths = ExpectedLengths(0.5)
    for number in range(5000):
        lengths.observe(make_request(number, [3], 50, tenant=f"t{number}"), 10)
    assert len(lengths._tenants) == 4096
