"""From ``engine.directory`` to an engine that can be started, with the text stage that fits it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog

from engines.contract import Capabilities, ExecutorLimits, RequestExecutor, RunnerLimits, StepRunner
from engines.manifest import EngineManifest
from server.config import Config, SchedulerConfig
from server.engine import Engine, EngineInfo
from server.engine_loop import StepEngine
from server.executor_loop import ExecutorEngine
from server.phases import Phases
from server.scheduling.admission import Admission
from server.scheduling.batcher import Batcher
from server.scheduling.config import BatcherConfig
from server.scheduling.executor_feed import ExecutorFeed
from server.text.chat import ChatTemplate
from server.text.tokenizer import TextTokenizer

log = structlog.get_logger(__name__)

SIMULATED, SIMULATED_EXECUTOR = "simulated", "simulated-executor"
TOKENIZER_NAME = "tokenizer.json"


@dataclass(frozen=True)
class LoadedModel:
    """An engine that is not started yet, and the text stage that fits it."""

    engine: Engine
    tokenizer: TextTokenizer
    template: ChatTemplate | None


def load_model(config: Config, phases: Phases) -> LoadedModel:
    """Load what ``engine.directory`` names: blocking, for a thread of its own. Raises EngineLoadError, ValueError and OSError, each saying what to change."""
    kind, _, profile = config.engine.directory.partition(":")
    if kind in (SIMULATED, SIMULATED_EXECUTOR):
        return _load_simulated(profile or "instant", config, executor=kind == SIMULATED_EXECUTOR)
    return _load_openvino(Path(config.engine.directory), config, phases)


def _load_simulated(profile: str, config: Config, *, executor: bool) -> LoadedModel:
    from engines import simulated

    rows, tokens = _step_size(config.scheduler)
    shape = simulated.SimulatedShape(max_rows=rows, max_step_tokens=tokens)
    if executor:
        twin = simulated.load(profile, shape, executor=True)
        return _assemble(_executor_engine(twin.engine, twin.manifest, config), twin.manifest, twin.tokenizer_json)
    loaded = simulated.load(profile, shape)
    return _assemble(_step_engine(loaded.engine, loaded.manifest, config), loaded.manifest, loaded.tokenizer_json)


def _load_openvino(directory: Path, config: Config, phases: Phases) -> LoadedModel:
    with phases.measure("import_engine"):
        from engines.openvino import load
        from engines.openvino.loader import read_manifest

    manifest = read_manifest(directory)
    rows, tokens = _step_size(config.scheduler)
    runner = load(
        directory,
        kv_bytes=config.engine.kv_bytes or None,
        threads=config.engine.threads or None,
        max_rows=rows,
        max_step_tokens=tokens,
        manifest=manifest,
    )
    timings = runner.load_timings
    phases.record("read", timings.read_seconds)
    phases.record("transform", timings.transform_seconds)
    phases.record("compile", timings.compile_seconds)
    phases.record("allocate", timings.allocate_seconds)
    engine = _step_engine(runner, manifest, config)
    return _assemble(engine, manifest, (directory / TOKENIZER_NAME).read_text(encoding="utf-8"))


def _step_size(scheduler: SchedulerConfig) -> tuple[int, int]:
    """The largest step that the batcher can plan: rows, and new tokens."""
    most = max(scheduler.step_tokens, scheduler.max_sequences + scheduler.min_prefill_tokens)
    return scheduler.max_sequences, most


def _assemble(engine: Engine, manifest: EngineManifest, tokenizer_json: str) -> LoadedModel:
    facts = manifest.tokenizer
    tokenizer = TextTokenizer.from_json(tokenizer_json, bos_id=facts.bos_id if facts.add_bos else None)
    return LoadedModel(engine, tokenizer, _template(manifest, tokenizer))


def _step_engine(runner: StepRunner, manifest: EngineManifest, config: Config) -> Engine:
    limits = runner.limits
    batcher = Batcher(limits, fingerprint=manifest.fingerprint, config=BatcherConfig(**config.scheduler.model_dump()))
    log.info("capacity", **capacity(limits))
    info = _describe(
        manifest,
        limits,
        runner.capabilities,
        kind=manifest.engine,
        bytes_per_block=limits.bytes_per_block,
        max_sequences=config.scheduler.max_sequences,
        max_step_tokens=limits.max_step_tokens,
    )
    return StepEngine(runner, batcher, _admission(config), info)


def _executor_engine(executor: RequestExecutor, manifest: EngineManifest, config: Config) -> Engine:
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
    return ExecutorEngine(executor, ExecutorFeed(limits), _admission(config), info)


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


def _template(manifest: EngineManifest, tokenizer: TextTokenizer) -> ChatTemplate | None:
    facts = manifest.tokenizer
    if facts.chat_template is None:
        return None
    ids = {"bos_token": facts.bos_id, "eos_token": facts.end_ids[0] if facts.end_ids else None}
    names = {name: tokenizer.token_name(token) for name, token in ids.items() if token is not None}
    return ChatTemplate(facts.chat_template, special_tokens={name: text for name, text in names.items() if text})
