"""From ``engine.directory`` to an engine that can be started, with the text stage that fits it.

Loading is most of a start's time, and most of it is the library's, which works without the interpreter. So the order is:
import the library, let it read and compile, and only meanwhile import the rest of the server (``under_way`` says when).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from server.concurrency import start_daemon
from server.config import Config, SchedulerConfig
from server.phases import Phases
from server.ranks.entry import executor_settings, is_trtllm

if TYPE_CHECKING:
    from engines.manifest import EngineManifest
    from engines.sampling.guides import GuideCompiler
    from server.engine import Engine
    from server.text.chat import ChatTemplate
    from server.text.tokenizer import TextTokenizer

SIMULATED, SIMULATED_EXECUTOR = "simulated", "simulated-executor"
DEFAULT_PROFILE = "instant"
TOKENIZER_NAME = "tokenizer.json"


@dataclass(frozen=True)
class LoadedModel:
    """An engine that is not started yet, and the text stage that fits it."""

    engine: Engine
    tokenizer: TextTokenizer
    template: ChatTemplate | None
    guides: GuideCompiler | None = None
    """Shared with the engine's sampler; None where the engine takes no guides."""


def load_model(config: Config, phases: Phases, under_way: Callable[[], object] = bool) -> LoadedModel:
    """Load what ``engine.directory`` names: blocking, for a thread of its own.

    Calls ``under_way`` once, when the interpreter is free for others. Raises EngineLoadError, ValueError and OSError, each saying
    what to change.
    """
    kind, _, profile = config.engine.directory.partition(":")
    if config.engine.adapters and not is_trtllm(config.engine.directory):
        raise ValueError(
            f"engine.adapters: {config.engine.directory} takes no adapters, only TensorRT-LLM engines do; leave it empty"
        )
    if kind in (SIMULATED, SIMULATED_EXECUTOR):
        under_way()
        return _load_simulated(profile or DEFAULT_PROFILE, config, phases, executor=kind == SIMULATED_EXECUTOR)
    if is_trtllm(config.engine.directory):
        under_way()
        return _load_trtllm(Path(config.engine.directory), config)
    return _load_openvino(Path(config.engine.directory), config, phases, under_way)


def check_model(config: Config) -> None:
    """What ``load_model`` would refuse, as far as a look without reading weights tells, memory aside. Raises as that does."""
    kind, _, profile = config.engine.directory.partition(":")
    if kind in (SIMULATED, SIMULATED_EXECUTOR):
        from engines.simulated.cost import require_profile

        require_profile(profile or DEFAULT_PROFILE)
    else:
        from engines.openvino.loader import check_engine, read_manifest

        directory = Path(config.engine.directory)
        check_engine(directory, read_manifest(directory))


def _load_trtllm(directory: Path, config: Config) -> LoadedModel:
    """On the leader rank of the job that `firsttoken serve` starts."""
    from engines.manifest_file import read_manifest
    from engines.trtllm.loading import load
    from server.assembly import executor_engine

    manifest = read_manifest(directory, "trtllm")
    settings = executor_settings(config.engine)
    executor = load(directory, manifest, settings, stall_after=config.engine.stuck_after)
    # The library masks; ours only compiles, so that a broken guide is refused by name before it goes there.
    guides = _guides(
        lambda: (directory / TOKENIZER_NAME).read_text(encoding="utf-8"),
        manifest.model.vocab_size,
        manifest.tokenizer.end_ids,
        config,
    )
    return LoadedModel(executor_engine(executor, manifest, config), *_read_text_stage(directory, manifest), guides)


def _load_simulated(profile: str, config: Config, phases: Phases, *, executor: bool) -> LoadedModel:
    from engines import simulated
    from engines.simulated.tokenizer import tokenizer_info, tokenizer_json
    from server.assembly import executor_engine, step_engine

    rows, tokens = _step_size(config.scheduler)
    shape = simulated.SimulatedShape(max_rows=rows, max_step_tokens=tokens)
    text = tokenizer_json()
    guides = _guides(tokenizer_json, shape.vocab_size, tokenizer_info().end_ids, config)
    if executor:
        twin = simulated.load(profile, shape, executor=True, constraints=guides)
        engine = executor_engine(twin.engine, twin.manifest, config)
        return LoadedModel(engine, *_text_stage(twin.manifest, text), guides)
    loaded = simulated.load(profile, shape, constraints=guides)
    engine = step_engine(loaded.engine, loaded.manifest, config, phases)
    return LoadedModel(engine, *_text_stage(loaded.manifest, text), guides)


def _load_openvino(directory: Path, config: Config, phases: Phases, under_way: Callable[[], object]) -> LoadedModel:
    with phases.measure("import_engine"):
        from engines.openvino import load
        from engines.openvino.loader import read_manifest

    manifest = read_manifest(directory)
    text_stage = start_daemon(lambda: _read_text_stage(directory, manifest), "text-loader")
    under_way()
    rows, tokens = _step_size(config.scheduler)
    path = directory / TOKENIZER_NAME
    guides = _guides(
        lambda: path.read_text(encoding="utf-8"), manifest.model.vocab_size, manifest.tokenizer.end_ids, config
    )
    runner = load(
        directory,
        kv_bytes=config.engine.kv_bytes or None,
        threads=config.engine.threads or None,
        max_rows=rows,
        max_step_tokens=tokens,
        manifest=manifest,
        constraints=guides,
    )
    timings = runner.load_timings
    phases.record("preflight", timings.preflight_seconds)
    phases.record("read", timings.read_seconds)
    phases.record("transform", timings.transform_seconds)
    phases.record("compile", timings.compile_seconds)
    phases.record("allocate", timings.allocate_seconds)
    from server.assembly import step_engine

    return LoadedModel(step_engine(runner, manifest, config, phases), *text_stage.result(), guides)


def _guides(
    tokenizer_json: Callable[[], str], vocab_size: int, end_ids: tuple[int, ...], config: Config
) -> GuideCompiler:
    from engines.sampling.guides import GuideCompiler

    guides = config.guides
    return GuideCompiler(tokenizer_json, vocab_size, end_ids, capacity=guides.cache_entries, threads=guides.threads)


def _step_size(scheduler: SchedulerConfig) -> tuple[int, int]:
    """The largest step that the batcher can plan: rows, and new tokens."""
    most = max(scheduler.step_tokens, scheduler.max_sequences + scheduler.min_prefill_tokens)
    return scheduler.max_sequences, most


def _read_text_stage(directory: Path, manifest: EngineManifest) -> tuple[TextTokenizer, ChatTemplate | None]:
    return _text_stage(manifest, (directory / TOKENIZER_NAME).read_text(encoding="utf-8"))


def _text_stage(manifest: EngineManifest, tokenizer_json: str) -> tuple[TextTokenizer, ChatTemplate | None]:
    from server.assembly import chat_template, text_tokenizer

    tokenizer = text_tokenizer(manifest, tokenizer_json)
    return tokenizer, chat_template(manifest, tokenizer)
