"""Figures from records whose truth is known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.client_health import ClientHealth
from loadtest.conclusions import Bound, conclude
from loadtest.errors import WorkloadError
from loadtest.record import Usage, from_wire, to_wire
from loadtest.slo import Slo, parse_slo
from loadtest.statistics import spread, weighted_quantiles, wilson
from loadtest.summary import summarise
from loadtest.transports.base import LoadSample, TargetFacts
from loadtest.workload import Workload
from tests.load.records import record, result


def load(running: int = 5, waiting: int = 0, kv: float = 0.3) -> LoadSample:
    return LoadSample(running, waiting, 0, kv, 0.0)


def test_latencies_follow_the_fields_definitions() -> None:
    one = record(1.0, [1.2, 1.3, 1.5], [1, 1, 2], usage=Usage(completion_tokens=4))
    assert one.ttft == pytest.approx(0.2)
    assert one.tpot == pytest.approx((0.5 - 0.2) / 3)
    assert one.gaps() == pytest.approx([0.1, 0.2])
    summary = summarise(result([one]))
    latencies = summary.total.latencies
    assert latencies.itl_message is not None
    assert latencies.itl_message.count == 2
    assert latencies.itl_message.mean == pytest.approx(0.15)
    assert latencies.itl_token is not None
    assert latencies.itl_token.count == 3
    assert latencies.itl_token.mean == pytest.approx(0.1)


def test_tokens_that_the_wire_hides_are_spread_over_its_messages() -> None:
    one = record(0.0, [0.1, 0.4, 0.7], usage=Usage(completion_tokens=9))
    assert one.gap_tokens() == [3.0, 3.0]
    token = summarise(result([one])).total.latencies.itl_token
    assert token is not None
    assert token.mean == pytest.approx(0.1)


def test_an_unsent_end_token_is_no_coalescing() -> None:
    assert record(0.0, [0.1, 0.2, 0.3], usage=Usage(completion_tokens=4)).gap_tokens() == [1.0, 1.0]


def test_a_single_token_has_no_time_between_tokens() -> None:
    one = record(0.0, [0.1])
    assert one.tpot is None
    assert Slo(itl=0.001).kept(one)
    assert summarise(result([one])).total.latencies.itl_message is None


def test_rates_count_what_happened_within_the_measured_time() -> None:
    workload = Workload(concurrency=1, duration=10.0, warmup=2.0)
    records = [
        record(1.0, [2.5, 3.0], warmup=True),
        record(3.0, [4.0, 5.0]),
        record(9.0, [9.5, 11.0, 12.0]),
    ]
    summary = summarise(result(records, workload=workload))
    assert summary.seconds == 8.0
    assert summary.offered_rate == pytest.approx(2 / 8)
    assert summary.request_rate == pytest.approx(2 / 8)
    assert summary.output_tokens_per_second == pytest.approx(5 / 8)
    assert summary.concurrency == pytest.approx((1.0 + 2.0 + 1.0) / 8)
    assert summary.total.requests == 2


def test_errors_are_counted_by_status_and_slow_or_failed_requests_are_no_goodput() -> None:
    records = [
        record(0.0, [0.1, 0.15]),
        record(0.0, [0.3, 0.35]),
        record(0.0, [0.1, 0.5]),
        record(0.0, status="RESOURCE_EXHAUSTED"),
        record(0.0, [0.1], status="CLIENT_CANCELLED"),
        record(0.0, [0.1], stalled=True, status="UNFINISHED"),
    ]
    summary = summarise(result(records), parse_slo("ttft=200ms,itl=100ms"))
    assert summary.total.statuses == {"OK": 3, "RESOURCE_EXHAUSTED": 1}
    assert summary.given_up == 2
    assert summary.total.goodput is not None
    assert summary.total.goodput.share == 0.25
    assert summary.total.latencies.ttft is not None
    assert summary.total.latencies.ttft.count == 3


def test_each_bound_of_an_slo_judges_alone() -> None:
    slow_gap = record(0.0, [0.1, 0.2, 0.9, 1.0])
    for name, inside, outside in (("ttft", 0.11, 0.09), ("itl", 0.31, 0.29), ("gap", 0.71, 0.69), ("e2e", 1.1, 0.9)):
        assert Slo(**{name: inside}).kept(slow_gap)
        assert not Slo(**{name: outside}).kept(slow_gap)


def test_the_cached_share_is_of_prompt_tokens() -> None:
    told = [Usage(prompt_tokens=100, cached_tokens=50), Usage(prompt_tokens=300, cached_tokens=0)]
    assert summarise(result([record(usage=usage) for usage in told])).cached_share == 0.125
    assert summarise(result([record()])).cached_share is None


def test_answers_shorter_than_planned_are_counted() -> None:
    short = record(0.0, [0.1, 0.2], max_tokens=3)
    assert summarise(result([short, record(0.0, [0.1], max_tokens=1)])).early_ends == 1


def test_classes_are_summed_apart() -> None:
    summary = summarise(result([record(0.0, [0.1]), record(0.0, [0.7], priority="batch")]))
    seen = {name: group.latencies.ttft.p50 for name, group in summary.classes.items() if group.latencies.ttft}
    assert seen == {"interactive": 0.1, "batch": 0.7}


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_quantiles_are_the_inverse_of_the_empirical_distribution(values: list[float], share: float) -> None:
    data = np.array(values)
    (found,) = weighted_quantiles(data, np.ones(len(data)), [share])
    assert found == np.quantile(data, share, method="inverted_cdf")


def test_a_weight_counts_like_so_many_values() -> None:
    assert spread([1.0, 2.0, 5.0], [3, 0, 1]) == spread([1.0, 1.0, 1.0, 5.0])


def test_wilson_knows_its_textbook_values() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-3)
    assert wilson(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-3)


@pytest.mark.parametrize("text", ["", "ttft", "ttft=0", "ttft=-1ms", "ttft=1h", "speed=3", "ttft=1.2.3s"])
def test_bad_slos_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError, match="--slo"):
        parse_slo(text)


def test_slos_know_units_and_presets() -> None:
    assert parse_slo("ttft=200ms, itl=0.05,e2e=3s") == Slo(ttft=0.2, itl=0.05, e2e=3.0)
    assert parse_slo("chat") == Slo(ttft=0.2, itl=0.05)


def test_records_cross_a_pipe_unchanged() -> None:
    one = record(1.0, [1.5, 2.0], [1, 3], usage=Usage(1, 2, 3, 0.5, None))
    assert from_wire(to_wire(one)) == one


QUEUE = [(float(at), load(running=10, waiting=5)) for at in range(5)]
STEADY = [record(0.0, [4.0])]


@pytest.mark.parametrize(
    ("samples", "bound"),
    [
        ([(float(at), load()) for at in range(5)], Bound.NONE),
        (QUEUE, Bound.SCHEDULING),
        ([(float(at), load(running=6, waiting=5, kv=0.97)) for at in range(5)], Bound.KV),
        ([(float(at), load(running=7, waiting=5)) for at in range(5)], Bound.COMPUTE),
        ([(float(at), load(running=2, waiting=5)) for at in range(5)], Bound.SCHEDULING),
        ([], Bound.UNKNOWN),
    ],
)
def test_the_conclusion_names_the_limit(samples: list[tuple[float, LoadSample]], bound: Bound) -> None:
    assert conclude(summarise(result(STEADY, samples))).bound is bound


def test_a_client_at_its_limit_overrules_every_other_reading() -> None:
    busy = ClientHealth(0.97, 0.001, 0.08, 0.2, 1000)
    conclusion = conclude(summarise(result(STEADY, QUEUE, health=busy)))
    assert conclusion.bound is Bound.CLIENT
    assert "97%" in conclusion.sentences[0]
    late = [record(1.0, [4.0], due=0.9)]
    assert conclude(summarise(result(late, QUEUE))).bound is Bound.CLIENT


def test_a_queue_that_only_grows_is_said() -> None:
    growing = [(float(at), load(running=10, waiting=at * 3)) for at in range(5)]
    text = " ".join(
        conclude(summarise(result(STEADY, growing, facts=TargetFacts("native", max_sequences=10)))).sentences
    )
    assert "did not fall back" in text
