"""The real adapter over the contract fake, in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engines.contract import RequestExecutor
from engines.simulated.faults import Faults
from engines.trtllm.adapters import Adapter
from engines.trtllm.executor import TrtllmExecutor
from engines.trtllm.facts import TensorRtFacts
from engines.trtllm.loading import load_with
from engines.trtllm.settings import ExecutorSettings
from tests.trtllm.engines import FACTS, make_engine
from tests.trtllm.fake_engine import FAULTS
from tests.trtllm.fake_site.tensorrt_llm.bindings import executor as fake_bindings

VOCABULARY = 300


def sized(blocks: int, batch: int, facts: TensorRtFacts = FACTS) -> TensorRtFacts:
    """Facts whose bill leaves room for exactly so many blocks."""
    return msgspec.structs.replace(
        facts,
        max_batch_size=batch,
        max_num_tokens=max(batch, 64),
        max_seq_len=min(256, blocks * facts.tokens_per_block),
    )


def fake_executor(
    blocks: int,
    batch: int,
    *,
    habits: Mapping[str, object] | None = None,
    faults: Faults | None = None,
    statistics_age: float = 0.0,
    facts: TensorRtFacts = FACTS,
    vocab_size: int = VOCABULARY,
    adapters: tuple[Adapter, ...] = (),
) -> TrtllmExecutor:
    """An executor with so many KV blocks and seats that went through the whole of the leader's loading."""
    facts = sized(blocks, batch, facts)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        manifest = make_engine(directory, facts, vocab_size=vocab_size, habits=habits)
        if faults is not None:
            FAULTS[folder] = faults
        try:
            settings = ExecutorSettings(
                kv_bytes=blocks * facts.tokens_per_block * facts.kv_bytes_per_token, adapters=adapters
            )
            return load_with(fake_bindings, directory, manifest, settings, statistics_age=statistics_age)
        finally:
            FAULTS.pop(folder, None)


def conformance_executor(blocks: int, batch: int) -> RequestExecutor:
    return fake_executor(blocks, batch)
