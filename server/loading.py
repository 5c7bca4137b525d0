"""From ``engine.directory`` to an engine that can be started, with the text stage that fits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from engines.contract import RunnerLimits, StepRunner
from engines.manifest import EngineManifest
from server.config import Config, SchedulerConfig
from server.engine import Engine, EngineInfo
from server.engine_loop import StepEngine
from server.phases import Phases
from server.scheduling.admission import Admission
from server.scheduling.batcher import Batcher
from server.scheduling.config import BatcherConfig
from server.text.chat import ChatTemplate
from server.text.tokenizer import TextTokenizer

log = structlog.get_logger(__name__)

SIMULATED = "simulated"
TOKENIZER_NAME = "tokenizer.json"


@dataclass(frozen=True)
class LoadedModel:
    """An engine that is not started yet, and the text stage that fits it."""

    engine: Engine
    tokenizer: TextTokenizer
    template: ChatTemplate | None


Loader = Callable[[Config, Phases], LoadedModel]
"""Blocking, and run in a thread of its own. Raises whatever keeps the engine from being loaded; its text is for the operator."""


def load_model(config: Config, phases: Phases) -> LoadedModel:
    """Load what ``engine.directory`` names. Raises EngineLoadError, ValueError and OSError, each saying what to change."""
    kind, _, profile = config.engine.directory.partition(":")
    if kind == SIMULATED:
        return _load_simulated(profile or "instant", config)
    return _load_openvino(Path(config.engine.directory), config, phases)


def _load_simulated(profile: str, config: Config) -> LoadedModel:
    from engines import simulated

    rows, tokens = _step_size(config.scheduler)
    loaded = simulated.load(profile, simulated.SimulatedShape(max_rows=rows, max_step_tokens=tokens))
    return _assemble(loaded.engine, loaded.manifest, loaded.tokenizer_json, config)


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
    return _assemble(runner, manifest, (directory / TOKENIZER_NAME).read_text(encoding="utf-8"), config)


def _step_size(scheduler: SchedulerConfig) -> tuple[int, int]:
    """The largest step that the batcher can plan: rows, and new tokens."""
    most = max(scheduler.step_tokens, scheduler.max_sequences + scheduler.min_prefill_tokens)
    return scheduler.max_sequences, most


def _assemble(runner: StepRunner, manifest: EngineManifest, tokenizer_json: str, config: Config) -> LoadedModel:
    facts = manifest.tokenizer
    tokenizer = TextTokenizer.from_json(tokenizer_json, bos_id=facts.bos_id if facts.add_bos else None)
    batcher = Batcher(
        runner.limits,
        fingerprint=manifest.fingerprint,
        config=BatcherConfig(**config.scheduler.model_dump()),
    )
    admission = Admission(
        max_waiting_requests=config.admission.max_waiting_requests,
        max_waiting_tokens=config.admission.max_waiting_tokens,
    )
    info = _describe(runner, manifest, config)
    log.info("capacity", **capacity(runner.limits))
    return LoadedModel(StepEngine(runner, batcher, admission, info), tokenizer, _template(manifest, tokenizer))


def _describe(runner: StepRunner, manifest: EngineManifest, config: Config) -> EngineInfo:
    limits = runner.limits
    return EngineInfo(
        kind=manifest.engine,
        model=manifest.source.name,
        fingerprint=manifest.fingerprint,
        vocab_size=limits.vocab_size,
        end_ids=manifest.tokenizer.end_ids,
        max_context=limits.max_context,
        block_size=limits.block_size,
        block_count=limits.block_count,
        bytes_per_block=limits.bytes_per_block,
        max_sequences=config.scheduler.max_sequences,
        max_step_tokens=limits.max_step_tokens,
        capabilities=runner.capabilities,
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
