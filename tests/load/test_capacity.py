"""The search for a capacity that is known, on a queue that is simulated here."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.arrivals import Arrivals, constant_rate
from loadtest.capacity import Search, crossing, estimate, find_capacity, make_probe
from loadtest.errors import WorkloadError
from loadtest.run import RunResult
from loadtest.sessions import SessionMaker
from loadtest.slo import Slo
from loadtest.sweep import knee, parse_sweep, sweep, with_rate
from loadtest.workload import Workload
from tests.load.records import record, result

SERVICE = 0.1
WORKLOAD = Workload(arrivals=Arrivals(constant_rate(1.0)), duration=400.0)


def single_server(workload: Workload) -> RunResult:
    """One server, constant service time, first come first served (M/D/1), by Lindley's recursion."""
    free, records = 0.0, []
    for session in SessionMaker(workload).sessions():
        free = max(free, session.at) + SERVICE
        records.append(record(session.at, [free]))
    return result(records, workload=workload)


def md1_share(rate: float, bound: float) -> float:
    """P(wait + service <= bound) of M/D/1 (Erlang's formula, for waits of a few services)."""
    load, wait = rate * SERVICE, bound - SERVICE
    terms = range(math.floor(wait / SERVICE) + 1)
    total = sum(
        (-rate * (wait - k * SERVICE)) ** k / math.factorial(k) * math.exp(rate * (wait - k * SERVICE)) for k in terms
    )
    return (1 - load) * total


def true_capacity(bound: float, attainment: float) -> float:
    low, high = 0.1, 1 / SERVICE
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if md1_share(middle, bound) >= attainment else (low, middle)
    return low


@pytest.mark.parametrize("start", [0.5, 4.0, 40.0])
def test_it_finds_the_capacity_of_a_queue_whose_theory_is_known(start: float) -> None:
    truth = true_capacity(0.35, 0.9)
    found = find_capacity(WORKLOAD, Search(Slo(ttft=0.35), start=start, precision=0.05), single_server)
    assert found.bracketed
    assert found.rate == pytest.approx(truth, rel=0.08)
    assert found.low <= truth * 1.05
    assert found.high >= truth * 0.95
    assert found.low <= found.rate <= found.high


def test_more_measuring_leaves_less_uncertainty() -> None:
    search = Search(Slo(ttft=0.35), start=4.0)
    short = find_capacity(msgspec.structs.replace(WORKLOAD, duration=20.0), search, single_server)
    long = find_capacity(msgspec.structs.replace(WORKLOAD, duration=600.0), search, single_server)
    assert long.high / long.low < short.high / short.low


def test_an_slo_that_nothing_keeps_is_said_to_be_a_bound() -> None:
    found = find_capacity(
        msgspec.structs.replace(WORKLOAD, duration=1e6, requests=20), Search(Slo(ttft=0.05)), single_server
    )
    assert not found.bracketed
    assert found.rate < 1e-3


def test_a_probe_without_requests_is_refused() -> None:
    with pytest.raises(WorkloadError, match="--duration"):
        make_probe(1.0, result([]), Slo(ttft=1.0))


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 20)), min_size=1, max_size=12))
def test_the_crossing_lies_within_the_probes(points: list[tuple[float, int]]) -> None:
    rates = [rate for rate, _ in points]
    at = crossing(rates, [kept for _, kept in points], [20.0] * len(points), 0.9)
    assert min(rates) * 0.999 <= at <= max(rates) * 1.001


def test_the_crossing_interpolates_between_neighbours() -> None:
    assert crossing([1.0, 4.0], [100, 80], [100, 100], 0.9) == pytest.approx(2.0)
    # A lucky probe above an unlucky one is pooled with it instead of being believed.
    assert crossing([1.0, 2.0, 4.0], [100, 70, 90], [100] * 3, 0.9) == pytest.approx(2 ** (10 / 20))


def test_the_estimate_replays_from_its_seed() -> None:
    probes = [make_probe(rate, single_server(with_rate(WORKLOAD, rate)), Slo(ttft=0.3)) for rate in (5.0, 8.0)]
    assert estimate(probes, 0.9) == estimate(probes, 0.9)


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        (Search(Slo(), attainment=1.0), "--attainment"),
        (Search(Slo(), start=0.0), "--rate"),
        (Search(Slo(), precision=0.0), "--precision"),
    ],
)
def test_a_search_that_cannot_be_is_refused(search: Search, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        find_capacity(WORKLOAD, search, single_server)


def test_the_knee_of_a_queue_lies_before_it_explodes() -> None:
    rates = np.linspace(1, 9.9, 20)
    latencies = [1 / (10 - rate) for rate in rates]
    place = knee(list(rates), latencies)
    assert place is not None
    assert 7.0 < rates[place] < 9.6


def test_a_straight_line_has_no_knee() -> None:
    assert knee([1, 2, 3, 4], [1, 2, 3, 4]) is None
    assert knee([1, 2, 3], [5, 5, 5]) is None
    assert knee([1, 2], [1, 9]) is None


def test_a_sweep_measures_each_rate_with_a_seed_of_its_own() -> None:
    seen: list[Workload] = []

    def measure(workload: Workload) -> RunResult:
        seen.append(workload)
        return single_server(workload)

    sweep(WORKLOAD, parse_sweep("1,2,4"), measure)
    assert [each.arrivals.curve.rate(0.0) for each in seen if each.arrivals] == [1.0, 2.0, 4.0]
    assert len({each.seed for each in seen}) == 3


@pytest.mark.parametrize("text", ["", "1,x", "2,1", "0,1", "1,1"])
def test_bad_sweeps_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="--sweep"):
        parse_sweep(text)


def test_a_closed_loop_has_no_rate() -> None:
    with pytest.raises(WorkloadError, match="--concurrency"):
        with_rate(Workload(concurrency=3, requests=4), 2.0)
