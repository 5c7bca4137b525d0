"""Paged attention on a CPU by OpenVINO: the embedded engine. Importing this package loads no library; :func:`load` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engines.manifest import EngineManifest
    from engines.openvino.runner import OpenVinoStepRunner
    from engines.sampling.constraint import Constraints

__all__ = ["load"]


def load(
    directory: Path,
    *,
    kv_bytes: int | None = None,
    kv_blocks: int | None = None,
    threads: int | None = None,
    max_rows: int = 256,
    max_step_tokens: int = 2048,
    manifest: EngineManifest | None = None,
    properties: Mapping[str, str] | None = None,
    constraints: Constraints | None = None,
) -> OpenVinoStepRunner:
    """Load the engine in ``directory``: read, transform, compile, allocate its KV memory. Takes 1 to 3 seconds.

    The KV memory holds ``kv_blocks`` blocks, or what ``kv_bytes`` has room for; with neither, a quarter of the memory that is
    available, at most 1 GiB. ``threads``: None = as many as the process may keep busy, a
    container's share of time considered. ``manifest``: that of a build not published yet; None reads
    the directory's own. ``properties``: further ones of the CPU plugin, none that decides numbers.
    ``constraints``: what makes constraints of guides; None = no structured output. Raises EngineLoadError.

    The first step of a new shape class pays for its kernels: to warm up, run through the real path one prompt of
    ``max_step_tokens``, one step that mixes a prefill chunk with a decode, and one decode alone.
    """
    from engines.openvino.loader import load_runner

    return load_runner(
        directory,
        kv_bytes=kv_bytes,
        kv_blocks=kv_blocks,
        threads=threads,
        max_rows=max_rows,
        max_step_tokens=max_step_tokens,
        manifest=manifest,
        properties=properties,
        constraints=constraints,
    )
