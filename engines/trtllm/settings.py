"""How the executor is set up: everything is told, nothing is left to a default that could change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from engines.contract import EngineLoadError
from engines.trtllm.adapters import Adapter
from engines.trtllm.facts import TensorRtFacts
from engines.trtllm.native import Bindings

USABLE_SHARE = 0.9
"""Of a GPU's memory; the rest is the driver's, the communication library's and fragmentation."""
STATISTICS_KEPT = 64
"""Iterations whose statistics the executor keeps until they are asked for."""
_LEAST_ADAPTER_CACHE = 1 << 30
CUDA_GRAPHS = 64
"""Most CUDA graphs that are kept: one for each number of running sequences, 4 .. 10 MB of GPU memory each, out of what is not planned with.
The library's own default keeps a single one, so that each change of the batch would record another."""


@dataclass(frozen=True)
class ExecutorSettings:
    """What may differ from start to start; the rest is the engine's."""

    kv_bytes: int = 0
    """Memory for keys and values on each GPU; 0 = what the bill leaves."""
    events: int = 16_384
    """KV events that the executor keeps until they are asked for; 0 = none."""
    adapters: tuple[Adapter, ...] = ()


def kv_tokens(facts: TensorRtFacts, settings: ExecutorSettings) -> int:
    """Tokens of keys and values, in whole blocks. Raises EngineLoadError where one longest sequence has no room (case B1)."""
    bill = int(USABLE_SHARE * facts.gpu_memory) - facts.weight_bytes - facts.workspace_bytes
    budget = settings.kv_bytes or bill
    blocks = budget // (facts.kv_bytes_per_token * facts.tokens_per_block)
    needed = -(-facts.max_seq_len // facts.tokens_per_block)
    if blocks < needed:
        raise EngineLoadError(
            f"{max(budget, 0)} bytes for keys and values hold {max(blocks, 0)} blocks of {facts.tokens_per_block} tokens, one sequence of "
            f"max_seq_len {facts.max_seq_len} needs {needed}: give more (engine.kv_bytes), or build with a smaller --max-seq-len, "
            "--max-batch-size or --max-num-tokens"
        )
    return blocks * facts.tokens_per_block


def guided_decoding(bindings: Bindings, tokenizer_json: str, vocab_size: int, end_ids: tuple[int, ...]) -> object:
    """xgrammar's set-up: the text of every token, by id. ``vocab_size``: ids beyond the tokenizer's have none."""
    document = json.loads(tokenizer_json)
    texts = [""] * vocab_size
    named = [
        *document["model"]["vocab"].items(),
        *((one["content"], one["id"]) for one in document.get("added_tokens", ())),
    ]
    for text, token in named:
        if token < vocab_size:
            texts[token] = text
    made: object = bindings.GuidedDecodingConfig(
        bindings.GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR,
        encoded_vocab=texts,
        tokenizer_str=tokenizer_json,
        stop_token_ids=list(end_ids),
    )
    return made


def executor_config(
    bindings: Bindings,
    facts: TensorRtFacts,
    settings: ExecutorSettings,
    guided: object | None = None,
    adapters: str | None = None,
) -> object:
    """The library's ExecutorConfig, the same on every rank. ``guided``: what ``guided_decoding`` made; None = no guides. ``adapters``:
    directory of ``settings.adapters`` by their numbers, read while the executor is made."""
    lora = {} if adapters is None else {"peft_cache_config": _adapter_cache(bindings, facts, settings, adapters)}
    made: object = bindings.ExecutorConfig(
        **lora,
        max_beam_width=1,
        batching_type=bindings.BatchingType.INFLIGHT,
        scheduler_config=bindings.SchedulerConfig(
            # What has begun finishes: our waiting room mirrors this reservation.
            capacity_scheduler_policy=bindings.CapacitySchedulerPolicy.GUARANTEED_NO_EVICT,
            context_chunking_policy=bindings.ContextChunkingPolicy.FIRST_COME_FIRST_SERVED,
        ),
        kv_cache_config=bindings.KvCacheConfig(
            enable_block_reuse=True,
            max_tokens=kv_tokens(facts, settings),
            max_attention_window=list(facts.max_attention_window),
            free_gpu_memory_fraction=USABLE_SHARE,
            event_buffer_max_size=settings.events,
        ),
        enable_chunked_context=True,
        iter_stats_max_iterations=STATISTICS_KEPT,
        request_stats_max_iterations=0,
        max_batch_size=facts.max_batch_size,
        max_num_tokens=facts.max_num_tokens,
        parallel_config=bindings.ParallelConfig(communication_mode=bindings.CommunicationMode.LEADER),
        guided_decoding_config=guided,
        extended_runtime_perf_knob_config=_perf_knobs(bindings, facts),
    )
    return made


def _adapter_cache(bindings: Bindings, facts: TensorRtFacts, settings: ExecutorSettings, directory: str) -> object:
    """Host memory for all adapters at once, twice their size: it is kept in pages, and one that had to leave could not come back, since
    requests name adapters and do not bring them."""
    made: object = bindings.PeftCacheConfig(
        optimal_adapter_size=min(8, facts.max_lora_rank),
        max_adapter_size=facts.max_lora_rank,
        host_cache_size=max(_LEAST_ADAPTER_CACHE, 2 * sum(adapter.bytes for adapter in settings.adapters)),
        lora_prefetch_dir=directory,
    )
    return made


def _perf_knobs(bindings: Bindings, facts: TensorRtFacts) -> object:
    """CUDA graphs are attributes: the constructor of the bindings does not take them."""
    made: Any = bindings.ExtendedRuntimePerfKnobConfig(multi_block_mode=True, enable_context_fmha_fp32_acc=False)
    made.cuda_graph_mode = facts.profile == "latency"
    made.cuda_graph_cache_size = min(facts.max_batch_size, CUDA_GRAPHS)
    knobs: object = made
    return knobs
