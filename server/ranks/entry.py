"""`firsttoken serve` for an engine of several ranks: preflight, then the supervisor."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engines.contract import EngineLoadError
from engines.manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from engines.trtllm.settings import ExecutorSettings
    from server.config import Config, EngineConfig

CLOSING = 30.0
"""Seconds that the leader has, beyond the drain, to end its streams and every rank's executor."""
REFUSED = 2
"""Exit status where the user must change something first."""


class _Kind(msgspec.Struct):
    engine: str


def is_trtllm(directory: str) -> bool:
    """Whether an engine directory says that it is TensorRT-LLM's. Whatever is wrong with it is said by who loads it."""
    try:
        return msgspec.json.decode((Path(directory) / MANIFEST_NAME).read_bytes(), type=_Kind).engine == "trtllm"
    except (OSError, ValueError, msgspec.MsgspecError):
        return False


def executor_settings(engine: EngineConfig) -> ExecutorSettings:
    """Raises EngineLoadError where engine.adapters names no directory."""
    from engines.trtllm.adapters import find_adapters
    from engines.trtllm.settings import ExecutorSettings

    return ExecutorSettings(kv_bytes=engine.kv_bytes, events=engine.kv_events, adapters=find_adapters(engine.adapters))


def supervise(config: Config, arguments: Sequence[str]) -> int:
    """Check the machine, start the ranks with ``arguments`` and stay until they have ended. Returns the exit status."""
    from engines.manifest_file import read_manifest
    from engines.trtllm.causes import find_cause
    from engines.trtllm.machine import observe_machine
    from engines.trtllm.native import HOW_TO_GET_IT
    from engines.trtllm.preflight import facts_of, mismatches
    from server.ranks.command import mpirun_command
    from server.ranks.supervisor import Job, Supervisor

    directory = Path(config.engine.directory)
    try:
        manifest = read_manifest(directory, "trtllm")
        facts, machine = facts_of(manifest, directory), observe_machine()
        if machine.tensorrt_llm is None:  # nothing else matters until it is there
            return _refuse([f"{directory}: {HOW_TO_GET_IT}"])
        problems = mismatches(
            directory, manifest, machine, executor_settings(config.engine), hashes=config.engine.check_hashes
        )
    except EngineLoadError as error:
        return _refuse([str(error)])
    if problems and config.engine.preflight == "refuse":
        return _refuse(problems)
    _warn(problems)
    job = Job(
        world_size=facts.world_size,
        command=lambda socket: mpirun_command(facts.world_size, socket, arguments, mpirun=machine.mpirun or "mpirun"),
        start_timeout=config.engine.rank_start_timeout,
        drain_timeout=config.lifecycle.drain_delay + config.lifecycle.drain_grace + CLOSING,
    )

    def explain(lines: list[str]) -> str | None:
        found = find_cause(lines)
        return None if found is None else found[1]

    async def run() -> int:
        return await Supervisor(job, explain).run()

    return asyncio.run(run())


def _refuse(problems: list[str]) -> int:
    sys.stderr.writelines(f"firsttoken serve: {problem}\n" for problem in problems)
    return REFUSED


def _warn(problems: list[str]) -> None:
    sys.stderr.writelines(f"firsttoken serve: warning: {problem}\n" for problem in problems)
