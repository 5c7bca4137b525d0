"""Knobs that contradict each other or the engine are refused at start, with both values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engines.contract import KvGroup, RunnerLimits
from server.scheduling.batcher import Batcher
from server.scheduling.config import BatcherConfig

LIMITS = RunnerLimits(
    vocab_size=100,
    block_size=16,
    block_count=64,
    bytes_per_block=1,
    max_rows=64,
    max_step_tokens=512,
    max_context=1024,
    kv_groups=(KvGroup((0,), None, 1),),
)


def test_the_defaults_suit_an_ordinary_engine() -> None:
    assert BatcherConfig().checked(LIMITS) == BatcherConfig()


def test_case_B1_a_pool_that_cannot_hold_one_maximal_sequence_is_refused() -> None:
    limits = msgspec.structs.replace(LIMITS, block_count=63)
    with pytest.raises(
        ValueError, match="the KV pool has 63 blocks, but one sequence of max_context 1024 tokens needs 64"
    ):
        Batcher(limits, fingerprint="x")
    Batcher(msgspec.structs.replace(LIMITS, block_count=64), fingerprint="x")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"max_sequences": 65}, "max_sequences is 65, but the engine takes 64 rows"),
        ({"step_tokens": 513}, "step_tokens is 513, but the engine takes 512"),
        ({"min_prefill_tokens": 449}, r"max_sequences \(64\) \+ min_prefill_tokens \(449\) exceed the 512"),
        ({"max_sequences": 0}, "max_sequences must be at least 1, not 0"),
        ({"max_partial_prefills": 0}, "max_partial_prefills must be at least 1, not 0"),
        ({"max_prefix_waits": -1}, "max_prefix_waits must be at least 0, not -1"),
        ({"watermark": 1.0}, r"watermark must be in \[0, 1\), not 1.0"),
    ],
)
def test_a_contradiction_names_both_values(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        replace(BatcherConfig(), **change).checked(LIMITS)


def test_more_than_one_kv_group_is_refused() -> None:
    limits = msgspec.structs.replace(LIMITS, kv_groups=LIMITS.kv_groups * 2)
    with pytest.raises(ValueError, match="one KV group; the engine has 2"):
        Batcher(limits, fingerprint="x")
