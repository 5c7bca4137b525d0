"""From a loaded runner, or an executor, to an engine that the server can start; and the text stage that fits it.

Apart from loading.py, because importing all this takes a while, which the library needs for compiling anyway.
"""

from __future__ import annotations

from pathlib import Path

import structlog
from msgspec import structs

from engines.contract import Capabilities, ExecutorLimits, RequestExecutor, RunnerLimits, StepRunner
from engines.manifest import EngineManifest
from server.config import Config
from server.engine import Engine, EngineInfo
from server.engine_loop import StepEngine
from server.executor_loop import ExecutorEngine
from server.phases import Phases
from server.saved_cache.keeper import CacheKeeper, KeeperSettings
from server.scheduling.admission import Admission
from server.scheduling.batcher import Batcher
from server.scheduling.config import BatcherConfig
from server.scheduling.executor_feed import ExecutorFeed
from server.text.chat import ChatTemplate
from server.text.tokenizer import TextTokenizer

log = structlog.get_logger(__name__)


def text_tokenizer(manifest: EngineManifest, tokenizer_json: str) -> TextTokenizer:
    """Raises UnsupportedTokenizerError."""
    facts = manifest.tokenizer
    return TextTokenizer.from_json(tokenizer_json, bos_id=facts.bos_id if facts.add_bos else None)


def chat_template(manifest: EngineManifest, tokenizer: TextTokenizer) -> ChatTemplate | None:
    """None where the model has none. Raises BadTemplateError."""
    facts = manifest.tokenizer
    if facts.chat_template is None:
        return None
    ids = {"bos_token": facts.bos_id, "eos_token": facts.end_ids[0] if facts.end_ids else None}
    names = {name: tokenizer.token_name(token) for name, token in ids.items() if token is not None}
    return ChatTemplate(facts.chat_template, special_tokens={name: text for name, text in names.items() if text})


def step_engine(runner: StepRunner, manifest: EngineManifest, config: Config, phases: Phases) -> Engine:
    """With what was saved of its prefix cache, where that is configured."""
    limits = runner.limits
    scheduling = BatcherConfig(**config.scheduler.model_dump())
    batcher = Batcher(limits, fingerprint=manifest.fingerprint, config=scheduling, profile=manifest.profile)
    log.info("capacity", **capacity(limits))
    info = _describe(
        manifest,
        limits,
        structs.replace(runner.capabilities, retention=True),  # its blocks are in our cache
        kind=manifest.engine,
        bytes_per_block=limits.bytes_per_block,
        max_sequences=config.scheduler.max_sequences,
        max_step_tokens=limits.max_step_tokens,
    )
    keeper = _keeper(runner, batcher, manifest.fingerprint, config)
    if keeper is not None:
        with phases.measure("cache_restore"):
            keeper.restore()
    return StepEngine(runner, batcher, _admission(config), info, keeper=keeper)


def _keeper(runner: StepRunner, batcher: Batcher, fingerprint: str, config: Config) -> CacheKeeper | None:
    wished = config.cache
    if not wished.save_path:
        return None
    settings = KeeperSettings(
        path=Path(wished.save_path),
        max_bytes=wished.save_bytes,
        save_timeout=wished.save_timeout,
        interval=wished.save_interval,
        restore_timeout=wished.restore_timeout,
    )
    return CacheKeeper(batcher.cache, batcher.prefixes, runner, settings, fingerprint=fingerprint)


def executor_engine(executor: RequestExecutor, manifest: EngineManifest, config: Config) -> Engine:
    limits = executor.limits
    info = _describe(
        manifest,
        limits,
        executor.capabilities,
        kind=f"{manifest.engine}-executor",
        bytes_per_block=0,  # executors do not tell
        max_sequences=limits.max_batch_size,
        max_step_tokens=limits.max_num_tokens,
    )
    feed = ExecutorFeed(limits, config=BatcherConfig(**config.scheduler.model_dump()), profile=manifest.profile)
    return ExecutorEngine(executor, feed, _admission(config), info)


def _admission(config: Config) -> Admission:
    caps = config.admission
    return Admission(max_waiting_requests=caps.max_waiting_requests, max_waiting_tokens=caps.max_waiting_tokens)


def _describe(
    manifest: EngineManifest,
    limits: RunnerLimits | ExecutorLimits,
    capabilities: Capabilities,
    *,
    kind: str,
    bytes_per_block: int,
    max_sequences: int,
    max_step_tokens: int,
) -> EngineInfo:
    return EngineInfo(
        kind=kind,
        model=manifest.source.name,
        fingerprint=manifest.fingerprint,
        vocab_size=limits.vocab_size,
        end_ids=manifest.tokenizer.end_ids,
        max_context=limits.max_context,
        block_size=limits.block_size,
        block_count=limits.block_count,
        bytes_per_block=bytes_per_block,
        max_sequences=max_sequences,
        max_step_tokens=max_step_tokens,
        capabilities=capabilities,
        adapters=limits.adapters if isinstance(limits, ExecutorLimits) else (),
    )


def capacity(limits: RunnerLimits) -> dict[str, int]:
    """What the KV pool holds: the first thing to know about a server that is to carry load."""
    blocks_of_one = -(-limits.max_context // limits.block_size)
    return {
        "kv_bytes_per_token": limits.bytes_per_block // limits.block_size,
        "kv_blocks": limits.block_count,
        "kv_tokens": limits.block_count * limits.block_size,
        "kv_bytes": limits.block_count * limits.bytes_per_block,
        "longest_sequences": limits.block_count // blocks_of_one,
    }
