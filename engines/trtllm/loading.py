"""From an engine directory to an executor, on the leader rank; and what the other ranks do."""

from __future__ import annotations

import contextlib
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from engines.contract import EngineDeadError, EngineLoadError, ExecutorLimits, ExecutorRequest
from engines.manifest import EngineManifest
from engines.sampling.params import SamplingParams
from engines.trtllm.adapters import numbered
from engines.trtllm.causes import explain
from engines.trtllm.executor import STALL, STATISTICS_AGE, TrtllmExecutor
from engines.trtllm.native import Bindings, load_bindings
from engines.trtllm.preflight import facts_of
from engines.trtllm.probe import require_expected
from engines.trtllm.settings import ExecutorSettings, executor_config, guided_decoding, kv_tokens

TOKENIZER_NAME = "tokenizer.json"
FIRST_LIGHT = 120.0
"""Seconds for the first token of all: kernels are still being loaded."""


def load(
    directory: Path, manifest: EngineManifest, settings: ExecutorSettings, *, stall_after: float = STALL
) -> TrtllmExecutor:
    """The leader's executor, after a first token came out of it. Blocks for as long as weights take to load. ``stall_after``: seconds
    without progress after which it counts as hung.

    Raises EngineLoadError, one sentence, with the library's own words where they are not understood.
    """
    return load_with(_bindings(), directory, manifest, settings, stall_after=stall_after)


def load_with(
    bindings: Bindings,
    directory: Path,
    manifest: EngineManifest,
    settings: ExecutorSettings,
    *,
    statistics_age: float = STATISTICS_AGE,
    stall_after: float = STALL,
) -> TrtllmExecutor:
    """``load`` with a library that is imported already."""
    facts = facts_of(manifest, directory)
    native = _construct(bindings, directory, manifest, settings)
    if not native.can_enqueue_requests():
        raise EngineLoadError(
            "this rank is not the leader: requests enter at rank 0, which `firsttoken serve` makes the leader"
        )
    limits = ExecutorLimits(
        vocab_size=manifest.model.vocab_size,
        block_size=facts.tokens_per_block,
        block_count=kv_tokens(facts, settings) // facts.tokens_per_block,
        max_batch_size=facts.max_batch_size,
        max_num_tokens=facts.max_num_tokens,
        max_context=facts.max_seq_len,
        adapters=tuple(adapter.name for adapter in settings.adapters),
    )
    blocks = _first_light(TrtllmExecutor(bindings, native, limits, statistics_age=0.0))
    true_limits = _with_blocks(limits, blocks)
    return TrtllmExecutor(bindings, native, true_limits, statistics_age=statistics_age, stall_after=stall_after)


def follow(directory: Path, manifest: EngineManifest, settings: ExecutorSettings, loaded: Callable[[], object]) -> None:
    """A rank that is not the leader: construct the same executor, then wait inside its shutdown() until the leader's is called.

    ``loaded`` is called in between. Raises EngineLoadError.
    """
    native = _construct(_bindings(), directory, manifest, settings)
    if native.can_enqueue_requests():
        raise EngineLoadError(
            "this rank became a leader although it is not rank 0: the ranks were not started together"
        )
    loaded()
    native.shutdown()


def _bindings() -> Bindings:
    bindings = load_bindings()
    require_expected(bindings)
    return bindings


def _construct(bindings: Bindings, directory: Path, manifest: EngineManifest, settings: ExecutorSettings) -> Any:  # noqa: ANN401 - the library ships no types
    facts, tokenizer = facts_of(manifest, directory), directory / TOKENIZER_NAME
    try:
        words = tokenizer.read_text(encoding="utf-8")
        guided = guided_decoding(bindings, words, manifest.model.vocab_size, manifest.tokenizer.end_ids)
        with numbered(settings.adapters) if settings.adapters else contextlib.nullcontext() as adapters:
            config = executor_config(bindings, facts, settings, guided, adapters)
            return bindings.Executor(directory, bindings.ModelType.DECODER_ONLY, config)
    except EngineLoadError:
        raise
    except OSError as error:
        raise EngineLoadError(f"{tokenizer}: {error.strerror}; copy the engine again, or build it again") from error
    except Exception as error:
        raise EngineLoadError(f"{directory}: {explain(str(error))}") from error


def _first_light(executor: TrtllmExecutor) -> int:
    """One token, through the real path: it proves that the ranks talk to each other, and its iteration tells the true pool.

    The pool can be smaller than asked for, where something else sits on a GPU. Raises EngineLoadError.
    """
    request = ExecutorRequest(request=0, tokens=array("i", [0]), max_tokens=1, sampling=SamplingParams(), end_ids=())
    end = time.monotonic() + FIRST_LIGHT
    try:
        executor.enqueue([request])
        over = False
        while not over:
            if time.monotonic() > end:
                raise EngineLoadError(
                    f"no first token within {FIRST_LIGHT:g} s: a rank hangs, often in NCCL; run with NCCL_DEBUG=INFO"
                )
            for response in executor.await_responses(1.0):
                if response.error is not None:
                    raise EngineLoadError(f"the first token failed: {response.error}")
                over = over or response.final
        while executor.stats().iterations == 0 and time.monotonic() < end:
            time.sleep(0.01)
    except EngineDeadError as error:
        raise EngineLoadError(f"the first token failed: {error}") from error
    return executor.stats().max_blocks


def _with_blocks(limits: ExecutorLimits, blocks: int) -> ExecutorLimits:
    """Raises EngineLoadError where the true pool cannot hold one longest sequence (case B1)."""
    needed = -(-limits.max_context // limits.block_size)
    if blocks < needed:
        raise EngineLoadError(
            f"the executor made {blocks} KV blocks of the {limits.block_count} asked for, one sequence of {limits.max_context} tokens needs "
            f"{needed}: something else uses a GPU's memory; `nvidia-smi` shows it"
        )
    return msgspec.structs.replace(limits, block_count=blocks)
