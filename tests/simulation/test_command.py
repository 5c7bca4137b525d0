"""`firsttoken simulate` as a user types it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from firsttoken.cli import main

TRAFFIC = ["--rate", "5", "--duration", "10", "--prompt-tokens", "300", "--output-tokens", "30"]


def test_the_figures_as_json_say_what_was_asked_and_replay(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        assert main(["simulate", *TRAFFIC, "--json", "--slo", "chat", "--scheduler.max_sequences", "4"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    said = msgspec.json.decode(outputs[0])
    assert said["figures"]["total"]["latencies"]["ttft"]["p50"] > 0
    assert said["figures"]["facts"]["max_sequences"] == 4
    assert {"steps", "utilisation", "hit_rate", "preemptions", "rejections"} <= said["scheduler"].keys()
    assert "estimate" in said["profile"]["source"]


def test_the_comparison_shows_each_way_to_batch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    asked = [*TRAFFIC, "--compare", "serial,static,inflight", "--report", str(page), "--profile", "embedded"]
    assert main(["simulate", *asked]) == 0
    shown = capsys.readouterr().out
    html = page.read_text()
    for mode in ("serial", "static", "inflight"):
        assert mode in shown
        assert mode in html
    assert "<svg" in html
    assert "http" not in html.replace("http://www.w3.org", ""), "the page needs nothing from elsewhere"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (["--compare", "dynamic"], "dynamic"),
        (["--profile", "h900"], "h900"),
        (["--fault", "melt@3"], "melt@3"),
        (["--scheduler.seats", "4"], "scheduler.seats"),
        (["--scheduler.max_sequences", "300"], "300"),
    ],
)
def test_what_cannot_be_is_refused_by_name(wrong: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *TRAFFIC, *wrong]) == 2
    assert named in capsys.readouterr().err
