"""The report: a page that needs nothing else, whose plots show what was measured."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.capacity import Capacity, Probe
from loadtest.report.page import build
from loadtest.report.plot import Mark, Plot, Series
from loadtest.report.scale import fit, linear_ticks, log_ticks
from loadtest.run import RunResult
from loadtest.slo import Slo
from loadtest.transports.base import LoadSample
from loadtest.workload import Workload
from tests.load.records import record, result


def run(rate: float, latency: float, *, waiting: int = 0) -> RunResult:
    records = [
        record(at / rate, [at / rate + latency, at / rate + 2 * latency], priority=("interactive", "batch")[at % 2])
        for at in range(40)
    ]
    samples = [(float(at), LoadSample(10, waiting, 0, 0.4, 0.1)) for at in range(4)]
    return result(records, samples, workload=Workload(concurrency=1, duration=40 / rate))


class Checker(HTMLParser):
    """Counts what is open, and collects what would be fetched."""

    VOID = frozenset({"meta", "br", "hr", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.svgs = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.svgs += tag == "svg"
        self.fetched += [value or "" for name, value in attrs if name in {"src", "href"}]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None: ...

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th"}:
            while self.open[-1] != tag:
                self.open.pop()
        assert self.open.pop() == tag


def check(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert not checker.open
    assert not checker.fetched
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ET.fromstring(svg)  # noqa: S314 - our own
        assert "nan" not in svg.lower()
        assert "inf" not in svg.lower()
    return checker


def test_a_sweep_shows_its_knee_and_stands_alone() -> None:
    results = [run(rate, latency) for rate, latency in ((1, 0.1), (2, 0.11), (4, 0.12), (8, 0.14), (9, 2.0))]
    page = build(results, Slo(ttft=0.2))
    checker = check(page)
    assert checker.svgs >= 10
    assert "knee 8.0" in page
    assert "plan for half to seven tenths" in page


def test_one_run_says_how_to_see_the_knee() -> None:
    page = build([run(3, 0.1)], None)
    check(page)
    assert "--sweep" in page
    assert "Time to first token over load" not in page


def test_a_capacity_is_the_headline() -> None:
    capacity = Capacity(4.2, 3.9, 4.5, "ttft <= 200 ms", 0.9, (Probe(4.0, (9,), (10,)),), bracketed=True)
    page = build([run(2, 0.1), run(4, 0.15), run(8, 1.0)], Slo(ttft=0.2), capacity)
    check(page)
    assert "4.20 requests/s (3.90 to 4.50)" in page
    assert "2.10 to 2.94" in page
    assert "offered 4.0" in page


def test_a_run_without_an_answer_has_a_page_too() -> None:
    check(build([result([record(status="UNAVAILABLE", detail="<b>gone</b>")])], None))


def test_names_from_a_server_are_no_markup() -> None:
    from loadtest.transports.base import TargetFacts

    page = build([result([record(0.0, [0.1])], facts=TargetFacts("native", model="<script>alert(1)</script>"))], None)
    assert "<script" not in page


def test_headers_never_reach_the_page() -> None:
    import msgspec

    one = run(1, 0.1)
    secret = msgspec.structs.replace(one.target, headers={"authorization": "Bearer s3cret"})
    assert "s3cret" not in build([msgspec.structs.replace(one, target=secret)], None)


POSITIVE = st.floats(1e-6, 1e9)


@given(st.lists(POSITIVE, min_size=1, max_size=20), st.booleans())
def test_scales_keep_every_value_inside_and_in_order(values: list[float], log: bool) -> None:
    scale = fit(values, 50, 600, log=log)
    places = [scale.place(value) for value in sorted(values)]
    assert all(49.99 <= place <= 600.01 for place in places)
    assert places == sorted(places)
    slack = (scale.high - scale.low) * 1e-6
    assert all(scale.low - slack <= tick <= scale.high + slack for tick in scale.ticks())


@given(st.floats(-1e3, 1e3), st.floats(1e-2, 1e6))
def test_linear_ticks_are_even_and_few(low: float, width: float) -> None:
    ticks = linear_ticks(low, low + width, 6)
    assert 2 <= len(ticks) <= 14
    steps = {round((b - a) / (ticks[1] - ticks[0]), 4) for a, b in pairwise(ticks)}
    assert steps == {1.0}


def test_log_ticks_count_decades() -> None:
    assert log_ticks(1, 100) == [1, 2, 5, 10, 20, 50, 100]
    assert log_ticks(1, 10_000) == [1, 10, 100, 1000, 10000]
    assert len(log_ticks(9.0, 11.0)) >= 3


def test_marks_and_points_stand_where_their_values_are() -> None:
    plot = Plot("t", "x", "y", [Series("s", [0.0, 10.0], [0.0, 100.0], "curve")], [Mark("m", x=5.0)])
    svg = plot.svg()
    mark = re.search(r'class="mark" d="M([0-9.]+) ', svg)
    curve = re.search(r'class="s0" d="M([0-9.]+) ([0-9.]+)L([0-9.]+) ([0-9.]+)"', svg)
    assert mark is not None
    assert curve is not None
    left, right = float(curve[1]), float(curve[3])
    assert float(mark[1]) == pytest.approx((left + right) / 2, abs=0.2)
    assert float(curve[2]) > float(curve[4])
    assert math.isfinite(left)
