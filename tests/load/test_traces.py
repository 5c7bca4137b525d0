"""Recorded traffic in its three formats, in the shape of the public files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.errors import TraceError
from loadtest.traces import TraceRow, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:06.4799600,110,27
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


def test_azure_lengths_and_times(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, AZURE))
    assert [(row.prompt_tokens, row.output_tokens) for row in trace.rows] == [(4808, 10), (3180, 8), (110, 27)]
    assert [row.at for row in trace.rows] == pytest.approx([0.0, 0.052, 2.5], abs=1e-6)
    assert trace.block_size == 0
    assert trace.rate == pytest.approx(3 / 2.5)


def test_mooncake_keeps_its_blocks(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 9]},
        {"timestamp": 1000, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]},
    ]
    trace = read_trace(write(tmp_path, "\n".join(map(json.dumps, rows))))
    assert trace.rows == (TraceRow(0.0, 600, 7, (0, 1)), TraceRow(2.0, 700, 5, (0, 9)))
    assert trace.block_size == 512


def test_a_recording_keeps_classes_and_tenants(tmp_path: Path) -> None:
    lines = [
        {"format": "firsttoken-recording", "version": 1, "block_size": 32},
        {
            "at": 0.5,
            "prompt_tokens": 70,
            "output_tokens": 3,
            "prefix": ["ff", "0a"],
            "priority": "batch",
            "tenant": "t1",
        },
    ]
    trace = read_trace(write(tmp_path, "\n".join(map(json.dumps, lines))))
    assert trace.rows == (TraceRow(0.0, 70, 3, (255, 10), "batch", "t1"),)
    assert trace.block_size == 32


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "neither"),
        ("a,b,c\n", "neither"),
        (AZURE.replace("3180", "many"), "line 3"),
        (AZURE.splitlines()[0], "no request"),
        ('{"timestamp": 0, "input_length": 4}', "line 1"),
        ('{"format": "firsttoken-recording", "version": 2, "block_size": 32}', "version 2"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_trace(write(tmp_path, text))
