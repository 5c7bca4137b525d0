"""How the executor is set up: what is told of an engine and its profile, and what has no room."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engines.contract import EngineLoadError
from engines.trtllm.settings import CUDA_GRAPHS, ExecutorSettings, executor_config, guided_decoding, kv_tokens
from tests.trtllm.engines import FACTS, GIB
from tests.trtllm.fake_site.tensorrt_llm.bindings import executor as fake


def configured(**changes: Any) -> Any:
    return executor_config(fake, msgspec.structs.replace(FACTS, **changes), ExecutorSettings(events=16))


def test_what_the_executor_is_told_of_every_engine() -> None:
    config = configured()
    assert config.scheduler_config.capacity_scheduler_policy is fake.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    assert config.parallel_config.communication_mode is fake.CommunicationMode.LEADER
    assert config.batching_type is fake.BatchingType.INFLIGHT
    assert config.enable_chunked_context
    assert (config.max_batch_size, config.max_num_tokens, config.max_beam_width) == (8, 64, 1)
    cache = config.kv_cache_config
    assert (cache.enable_block_reuse, cache.max_attention_window, cache.event_buffer_max_size) == (True, [256, 256], 16)


@pytest.mark.parametrize(("profile", "graphs"), [("latency", True), ("throughput", False)])
def test_cuda_graphs_are_the_latency_profiles_and_more_than_one_is_kept(profile: str, graphs: bool) -> None:
    knobs = configured(profile=profile).extended_runtime_perf_knob_config
    assert (knobs.multi_block_mode, knobs.cuda_graph_mode) == (True, graphs)
    assert knobs.cuda_graph_cache_size == FACTS.max_batch_size
    assert configured(max_batch_size=512).extended_runtime_perf_knob_config.cuda_graph_cache_size == CUDA_GRAPHS


def test_the_pool_is_what_the_bill_leaves_in_whole_blocks() -> None:
    # 0.9 of 80 GiB, less 16 GiB of weights and 1 GiB of activations, at 1 KiB a token: 55 Mi tokens.
    assert kv_tokens(FACTS, ExecutorSettings()) == 55 * GIB // 1024
    assert kv_tokens(FACTS, ExecutorSettings(kv_bytes=3_000_000)) == 3_000_000 // (1024 * 8) * 8


def test_a_pool_without_room_for_one_longest_sequence_is_refused_case_b1() -> None:
    with pytest.raises(
        EngineLoadError, match=r"hold 31 blocks of 8 tokens, one sequence of max_seq_len 256 needs 32.*engine\.kv_bytes"
    ):
        kv_tokens(FACTS, ExecutorSettings(kv_bytes=31 * 8 * 1024))


def test_guides_know_the_text_of_every_token() -> None:
    document = '{"model": {"vocab": {"a": 0, "\u0120b": 2}}, "added_tokens": [{"content": "<end>", "id": 3}, {"content": "x", "id": 9}]}'
    made: Any = guided_decoding(fake, document, 5, (3,))
    assert made.backend is fake.GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR
    assert made.encoded_vocab == ["a", "", "\u0120b", "<end>", ""]
    assert (made.tokenizer_str, made.stop_token_ids) == (document, [3])
