"""What is left behind when the engine dies or hangs: every thread's stack, and the last steps."""

from __future__ import annotations

import datetime as dt
import os
import sys
import threading
import traceback
from pathlib import Path

import msgspec
import structlog

from server.engine import Engine
from server.step_record import StepRecord

log = structlog.get_logger(__name__)

STEPS_LOGGED = 8
"""The log gets the last few; the file gets all that were kept."""


class PostMortem(msgspec.Struct, frozen=True):
    why: str
    at: str
    """ISO 8601, UTC."""
    stacks: dict[str, list[str]]
    """Each thread's calls, the outermost first: file, line, function. No local variable, so no prompt."""
    steps: list[StepRecord]


def post_mortem(engine: Engine, why: str) -> PostMortem:
    """Any thread."""
    at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
    return PostMortem(why, at, thread_stacks(), engine.recent_steps())


def thread_stacks() -> dict[str, list[str]]:
    """Where each thread of Python's is at this moment."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(ident, 'unknown')}:{ident}": [
            f"{place.filename}:{place.lineno} {place.name}" for place in traceback.extract_stack(frame)
        ]
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - documented, and the only way
    }


def leave_behind(found: PostMortem, directory: str) -> Path | None:
    """Log it; write it whole into ``directory`` unless that is empty. The file, or None. Never raises: worse things happen just now."""
    for thread, stack in found.stacks.items():
        log.error("thread stack", thread=thread, calls=stack)
    log.error("last steps", steps=msgspec.to_builtins(found.steps[-STEPS_LOGGED:]))
    if not directory:
        return None
    path = Path(directory) / f"firsttoken-{found.at.replace(':', '')}-{os.getpid()}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(found))
    except OSError as error:
        log.error("cannot write the post-mortem", file=str(path), why=str(error))  # noqa: TRY400 - no traceback helps here
        return None
    log.error("post-mortem written", file=str(path))
    return path
