"""A recording replays, and gives away neither text nor tokens."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.sampling.params import SamplingParams
from loadtest.traces import read_trace
from protos.firsttoken.v1 import generation_pb2 as pb
from server.engine import GenerationRequest, PriorityClass
from server.telemetry import recording
from server.telemetry.recording import Recorder
from tests.fakes.running import collect, request, running

REQUEST = GenerationRequest(
    id=1,
    prompt=tuple(range(70)),
    max_tokens=9,
    sampling=SamplingParams(),
    end_ids=(),
    stop_ids=(),
    priority=PriorityClass.BATCH,
    tenant="acme",
    cache_salt=b"",
    arrival=101.5,
    deadline=None,
    ttft_deadline=None,
)


def change(**fields: Any) -> GenerationRequest:
    return msgspec.structs.replace(REQUEST, **fields)


def recorded(path: Path, *requests: GenerationRequest) -> list[dict[str, Any]]:
    recorder = Recorder(path, block_size=16, began=100.0)
    for each in requests:
        recorder.put(each, 7)
    recorder.close(10)
    recorder.close(10)  # idempotent
    return [json.loads(line) for line in path.read_text().splitlines()][1:]


def test_lengths_times_and_prefixes(tmp_path: Path) -> None:
    same, other, salted = change(), change(prompt=(*range(32), *[5] * 40)), change(cache_salt=b"s", tenant="b")
    rows = recorded(tmp_path / "r", REQUEST, same, other, salted)
    assert tuple(rows[0][name] for name in ("at", "prompt_tokens", "output_tokens", "priority")) == (
        1.5,
        70,
        7,
        "batch",
    )
    assert [len(row["prefix"]) for row in rows] == [4, 4, 4, 4]  # full blocks only
    first, again, branch, apart = (row["prefix"] for row in rows)
    assert first == again
    assert branch[:2] == first[:2]
    assert not set(branch[2:]) & set(first)  # chained: nothing after a difference is equal
    assert not set(apart) & set(first)  # salts keep apart here as in the cache
    assert rows[0]["tenant"] == rows[1]["tenant"] != rows[3]["tenant"]


def test_nothing_can_be_compared_with_another_recording_or_tried_out(tmp_path: Path) -> None:
    (one,), (two,) = recorded(tmp_path / "a", REQUEST), recorded(tmp_path / "b", REQUEST)
    assert not set(one["prefix"]) & set(two["prefix"])
    assert one["tenant"] != two["tenant"] != "acme"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_slow_disk_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_WAITING", 3)
    monkeypatch.setattr(Recorder, "_write", lambda _: None)  # a thread that never takes anything
    recorder = Recorder(tmp_path / "r", block_size=16, began=0.0)
    for _ in range(5):
        recorder.put(REQUEST, 1)
    assert recorder.left_out == 2
    recorder.close(0.1)


async def test_the_load_tool_reads_what_a_server_recorded(tmp_path: Path) -> None:
    path = tmp_path / "traffic.jsonl"
    async with running(telemetry__recording=path) as server:
        shared = "a shared beginning of sixty-four bytes, which is four blocks long"
        for end, priority in (("one", pb.PRIORITY_INTERACTIVE), ("two", pb.PRIORITY_BATCH)):
            await collect(server.generation.Generate(request(shared + end, max_tokens=5, priority=priority)))
    trace = read_trace(path)
    assert trace.block_size == 16
    assert [(row.output_tokens, row.priority, row.tenant) for row in trace.rows] == [
        (5, "interactive", ""),
        (5, "batch", ""),
    ]
    assert trace.rows[0].blocks == trace.rows[1].blocks != ()
    assert trace.rows[1].at > 0
    assert "shared" not in path.read_text()
