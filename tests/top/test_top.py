"""`firsttoken top`: what it computes from two readings, what it draws, and how it takes a server that goes away."""

from __future__ import annotations

import asyncio
import io
import json
import math
from dataclasses import asdict
from typing import Any

import pytest
from rich.console import Console

from firsttoken.cli import main
from firsttoken.client import Load, Priority, UnavailableError
from firsttoken.top.reading import Reading, parse, read
from firsttoken.top.screen import screen
from firsttoken.top.view import Spread, quantile, view_of
from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import collect, request, running

EARLIER = """
# TYPE firsttoken_steps_total counter
firsttoken_steps_total 100.0
# TYPE firsttoken_step_seconds_total counter
firsttoken_step_seconds_total{part="plan"} 1.0
firsttoken_step_seconds_total{part="engine"} 10.0
# TYPE firsttoken_completion_tokens_total counter
firsttoken_completion_tokens_total{class="interactive"} 1000.0
# TYPE firsttoken_prompt_tokens_total counter
firsttoken_prompt_tokens_total 100.0
# TYPE firsttoken_prefix_hit_tokens_total counter
firsttoken_prefix_hit_tokens_total 100.0
# TYPE firsttoken_rejections_total counter
firsttoken_rejections_total{reason="waiting_tokens"} 5.0
# TYPE firsttoken_time_to_first_token_seconds histogram
firsttoken_time_to_first_token_seconds_bucket{class="interactive",le="0.1"} 50.0
firsttoken_time_to_first_token_seconds_bucket{class="interactive",le="0.2"} 50.0
firsttoken_time_to_first_token_seconds_bucket{class="interactive",le="+Inf"} 50.0
"""
LATER = """
# TYPE firsttoken_steps_total counter
firsttoken_steps_total 120.0
# TYPE firsttoken_step_seconds_total counter
firsttoken_step_seconds_total{part="plan"} 1.2
firsttoken_step_seconds_total{part="engine"} 12.0
# TYPE firsttoken_completion_tokens_total counter
firsttoken_completion_tokens_total{class="interactive"} 1300.0
# TYPE firsttoken_prompt_tokens_total counter
firsttoken_prompt_tokens_total 300.0
# TYPE firsttoken_prefix_hit_tokens_total counter
firsttoken_prefix_hit_tokens_total 150.0
# TYPE firsttoken_rejections_total counter
firsttoken_rejections_total{reason="waiting_tokens"} 9.0
# TYPE firsttoken_time_to_first_token_seconds histogram
firsttoken_time_to_first_token_seconds_bucket{class="interactive",le="0.1"} 50.0
firsttoken_time_to_first_token_seconds_bucket{class="interactive",le="0.2"} 70.0
firsttoken_time_to_first_token_seconds_bucket{class="interactive",le="+Inf"} 70.0
"""
LOAD = Load(True, 3, dict.fromkeys(Priority, 2), 77, 0.25, 0.5, 4, 0.75)


def drawn(view: Any) -> str:
    console = Console(width=100, record=True, highlight=False, file=io.StringIO())
    console.print(screen(view))
    return console.export_text()


def test_rates_and_quantiles_are_of_the_time_between_two_readings() -> None:
    view = view_of("here", Reading(10.0, LOAD, "", parse(EARLIER)), Reading(12.0, LOAD, "", parse(LATER)))
    assert (view.steps_per_second, view.tokens_per_second) == (10.0, 150.0)
    assert view.step_seconds["engine"] == pytest.approx(0.1)
    assert view.step_seconds["plan"] == pytest.approx(0.01)
    assert view.hit_rate == 0.25
    assert view.rejections_per_second == {"waiting_tokens": 2.0}
    assert view.first_token["interactive"].p50 == pytest.approx(0.15)
    assert view.first_token["interactive"].p95 == pytest.approx(0.195)
    assert view.first_token["batch"] == Spread(None, None)
    assert view.waiting == {"interactive": 2, "standard": 2, "batch": 2}
    text = drawn(view)
    assert "150.0 ms" in text
    assert "tokens/s 150.0" in text
    assert "refused: waiting_tokens 2.0/s" in text


def test_a_server_that_began_anew_counts_from_its_start() -> None:
    view = view_of("here", Reading(10.0, LOAD, "", parse(LATER)), Reading(12.0, LOAD, "", parse(EARLIER)))
    assert view.steps_per_second == 50.0
    assert view.first_token["interactive"].p95 == pytest.approx(0.095)


def test_each_source_may_be_missing_and_says_why() -> None:
    only_load = view_of("here", Reading(1.0), Reading(2.0, LOAD, "", {}, "http://x: refused"))
    assert (only_load.reachable, only_load.busy, only_load.tokens_per_second) == (True, 0.75, None)
    assert "http://x: refused" in drawn(only_load)
    only_metrics = view_of("here", Reading(1.0), Reading(2.0, None, "for operators", parse(LATER)))
    assert (only_metrics.reachable, only_metrics.ready) == (True, None)
    assert "for operators" in drawn(only_metrics)
    away = view_of("here", Reading(1.0), Reading(2.0, None, "no connection", {}, "no metrics"))
    assert not away.reachable
    assert "firsttoken at here: away" in drawn(away)


def test_the_quantile_is_prometheus() -> None:
    counts = {0.1: 10.0, 0.2: 30.0, math.inf: 40.0}
    assert quantile(counts, 0.5) == pytest.approx(0.15)
    assert quantile(counts, 0.99) == 0.2  # beyond the last bound nothing is known
    assert quantile({0.1: 0.0, math.inf: 0.0}, 0.5) is None
    assert quantile({}, 0.5) is None


def test_reading_never_raises_for_a_server_that_is_away() -> None:
    def ask() -> Load:
        raise UnavailableError("no connection", status="UNAVAILABLE")

    found = read(ask, "http://127.0.0.1:9/metrics", timeout=1.0)
    assert not found.reachable
    assert found.load_error == "no connection"
    assert "http://127.0.0.1:9/metrics" in found.metrics_error


async def test_once_and_json_against_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(FakeEngine(step_seconds=0.005)) as server:
        places = ["--address", server.target, "--metrics", f"http://127.0.0.1:{server.app.http_port}/metrics"]
        looking = asyncio.to_thread(main, ["top", "--once", "--json", "--interval", "0.5", *places])
        task = asyncio.create_task(looking)
        while not task.done():
            await collect(server.generation.Generate(request(max_tokens=20)))
        assert task.result() == 0
        view = json.loads(capsys.readouterr().out)
        assert (view["reachable"], view["ready"], view["errors"]) == (True, True, [])
        assert view["tokens_per_second"] > 0
        assert view["first_token"]["interactive"]["p50"] > 0
        assert await asyncio.to_thread(main, ["top", "--once", "--interval", "0.1", *places]) == 0
        assert f"firsttoken at {server.target}" in capsys.readouterr().out


def test_nobody_there_is_told_to_programs_and_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["top", "--once", "--interval", "0.1", "--address", "127.0.0.1:9", "--metrics", "http://127.0.0.1:9/m"]
    assert main([*words, "--json"]) == 1
    out, err = capsys.readouterr()
    view = json.loads(out)
    assert view["reachable"] is False
    assert len(view["errors"]) == 2
    assert "no server answers at 127.0.0.1:9" in err
    assert asdict(Spread(None, None)) == {"p50": None, "p95": None}
