"""Whole runs against servers whose timing is known."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from firsttoken.commands import load
from loadtest.arrivals import Arrivals, constant_rate
from loadtest.distributions import Distribution
from loadtest.errors import TargetError, WorkloadError
from loadtest.run import run_load
from loadtest.summary import summarise
from loadtest.transports.base import Target
from loadtest.workload import Behaviour, Lengths, SharedPrefix, Turns, Workload
from tests.load.fakes import paced


def fixed(value: float) -> Distribution:
    return Distribution("constant", {"value": value})


def lengths(prompt: int = 20, output: int = 10) -> Lengths:
    return Lengths(fixed(prompt), fixed(output))


def native(address: str) -> Target:
    return Target("native", address)


def test_measured_times_are_the_servers_times() -> None:
    # No bound from above: how late a busy machine is says nothing about the measurement. Nothing can be early, though.
    workload = Workload(arrivals=Arrivals(constant_rate(20.0)), duration=2.0, lengths=lengths())
    with paced("--ttft", "0.1", "--gap", "0.02", "--tokens-per-message", "2") as address:
        result = run_load(workload, native(address), processes=2)
    assert len(result.records) > 15
    for record in result.records:
        assert record.status == "OK"
        assert list(record.tokens) == [2] * 5
        assert record.sent >= record.due
        assert (record.ttft or 0) >= 0.099
        assert record.times[-1] - record.sent >= 0.1 + 4 * 0.02 - 0.001
        assert record.usage.completion_tokens == 10
        assert record.usage.prompt_tokens == 20
    assert len({record.session for record in result.records}) == len(result.records)
    assert result.facts.max_sequences == 100_000
    assert result.samples
    assert len(result.health) == 2


def test_open_loop_keeps_sending_to_a_server_that_is_full() -> None:
    workload = Workload(arrivals=Arrivals(constant_rate(50.0), float("inf")), requests=20, lengths=lengths(output=2))
    with paced("--seats", "1", "--ttft", "0.1", "--gap", "0.01") as address:
        result = run_load(workload, native(address))
    assert max(record.sent for record in result.records) < min(sorted(record.end for record in result.records)[15:])
    assert max(record.latency for record in result.records) > 10 * 0.1


def test_closed_loop_never_has_more_on_its_way_than_asked() -> None:
    workload = Workload(concurrency=3, requests=12, lengths=lengths(output=3))
    with paced("--ttft", "0.02") as address:
        result = run_load(workload, native(address), processes=2)
    assert len(result.records) == 12
    edges = sorted([(record.sent, 1) for record in result.records] + [(record.end, -1) for record in result.records])
    running = [sum(step for _, step in edges[: place + 1]) for place in range(len(edges))]
    assert max(running) == 3


def test_a_conversation_sends_all_before_it_again() -> None:
    workload = Workload(
        concurrency=1,
        requests=2,
        lengths=lengths(30, 10),
        turns=Turns(fixed(3), fixed(0.05)),
        prefix=SharedPrefix(tokens=8),
    )
    with paced("--ttft", "0.01", "--gap", "0.001") as address:
        result = run_load(workload, native(address))
    seen = [(record.turn, record.usage.prompt_tokens) for record in result.records]
    assert seen == [(0, 38), (1, 78), (2, 118)] * 2
    for before, after in zip(result.records, result.records[1:], strict=False):
        if after.turn:
            assert after.sent - before.end >= 0.049


def test_refusals_cancels_and_deadlines_are_told_apart() -> None:
    with paced("--ttft", "30", "--refuse-length", "99") as address:
        refused = run_load(Workload(concurrency=2, requests=4, lengths=lengths(output=99)), native(address))
        given_up = Behaviour(cancel_rate=1.0, cancel_after=fixed(0.05))
        cancelled = run_load(
            Workload(concurrency=2, requests=4, lengths=lengths(), behaviour=given_up), native(address)
        )
        late = Behaviour(deadline=0.1)
        expired = run_load(Workload(concurrency=2, requests=4, lengths=lengths(), behaviour=late), native(address))
    assert {(record.status, record.detail) for record in refused.records} == {
        ("RESOURCE_EXHAUSTED", "no room: 100 % full")
    }
    assert {record.status for record in cancelled.records} == {"CLIENT_CANCELLED"}
    assert summarise(cancelled).total.requests == 0
    assert {record.status for record in expired.records} == {"DEADLINE_EXCEEDED"}


def test_what_does_not_end_within_the_drain_is_unfinished() -> None:
    workload = Workload(concurrency=2, duration=0.3, drain=1.0, lengths=lengths(output=1000))
    with paced("--ttft", "0", "--gap", "0.05") as address:
        result = run_load(workload, native(address))
    assert {record.status for record in result.records} == {"UNFINISHED"}
    assert all(record.times for record in result.records)


def test_a_server_that_falls_silent_does_not_hold_a_closed_loop_for_ever() -> None:
    workload = Workload(concurrency=2, requests=4, drain=1.0, lengths=lengths(output=3))
    with paced("--ttft", "0", "--gap", "600") as address:
        result = run_load(workload, native(address))
    assert {record.status for record in result.records} == {"UNFINISHED"}
    assert [len(record.times) for record in result.records] == [1, 1]


def test_a_server_that_is_not_there_is_an_error_of_the_target() -> None:
    with pytest.raises(TargetError, match=r"127\.0\.0\.1:1"):
        run_load(Workload(concurrency=1, requests=1), native("127.0.0.1:1"))


def test_lengths_beyond_the_servers_context_are_refused_before_anything_is_sent() -> None:
    with paced() as address, pytest.raises(WorkloadError, match="8192"):
        run_load(Workload(concurrency=1, requests=1, lengths=lengths(9000)), native(address))


def command(*words: str) -> tuple[int, argparse.Namespace]:
    parser = argparse.ArgumentParser()
    load.add_arguments(parser)
    arguments = parser.parse_args(words)
    return load.run(arguments), arguments


def test_the_command_prints_json_and_writes_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = tmp_path / "records.jsonl"
    with paced("--ttft", "0.01") as address:
        words = ["--rate", "30", "--requests", "10", "--output-tokens", "3", "--slo", "e2e=600s", "--json", "--quiet"]
        status, _ = command(address, *words, "--classes", "interactive=1,batch=1", "--records", str(records))
    printed = json.loads(capsys.readouterr().out)
    assert status == 0
    assert printed["total"]["ok"] == 10
    assert printed["total"]["goodput"]["share"] == 1.0
    assert set(printed["classes"]) == {"interactive", "batch"}
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert [len(line["times"]) for line in lines] == [3] * 10


def test_the_command_prints_a_table_and_its_conclusion(capsys: pytest.CaptureFixture[str]) -> None:
    with paced("--ttft", "0.01") as address:
        assert command(address, "--concurrency", "2", "--requests", "4", "--quiet")[0] == 0
    printed = capsys.readouterr().out
    assert "time to first token" in printed
    assert "requests: 4 OK" in printed


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--rate", "0", "--duration", "1"), "--rate"),
        (("--rate", "1"), "--duration or --requests"),
        (("--rate", "1", "--ramp", "1..2:3"), "give one"),
        (("--concurrency", "1", "--requests", "1", "--slo", "x=1"), "--slo"),
        (("127.0.0.1:1", "--concurrency", "1", "--requests", "1", "--quiet"), "cannot reach 127.0.0.1:1"),
    ],
)
def test_the_command_says_what_to_change(
    words: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*words)[0] == 2
    assert problem in capsys.readouterr().err
