"""The source that the client is measured against loses nothing and stamps truly."""

from __future__ import annotations

import asyncio
from unittest import mock

from benchmarks import bench_load_client
from benchmarks.bench_load_client import delays, source
from loadtest.run import run_load
from loadtest.workload import Workload
from tests.load.test_sessions import lengths


def test_every_message_arrives_once() -> None:
    with source(0.0) as target:
        records = run_load(Workload(concurrency=8, requests=24, lengths=lengths("5", "300")), target).records
    assert [(record.status, len(record.times)) for record in records] == [("OK", 300)] * 24


def test_delays_are_those_of_every_message() -> None:
    with mock.patch.object(bench_load_client, "PACED_TOKENS", 10):
        seen = asyncio.run(delays())
    assert len(seen) == 64 * 10
    assert min(seen) > 0
    assert max(seen) < 30
