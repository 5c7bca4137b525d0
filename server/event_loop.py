"""Which event loop the server runs on: the one place that decides it.

uvloop's does in C what asyncio's does in Python. Per token of one stream that is a sixth of the event loop's processor time, which
on a small machine is taken from the model. grpc.aio, aiohttp and all of ours use asyncio's interface and do not see a difference.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TypeAlias

import structlog

log = structlog.get_logger(__name__)

LoopFactory: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


def loop_factory(*, uvloop: bool) -> LoopFactory:
    """For ``asyncio.Runner``. ``uvloop``: take that where it is installed; where it is not, the log says so and asyncio's own serves."""
    if not uvloop:
        return asyncio.new_event_loop
    try:
        from uvloop import new_event_loop
    except ImportError:
        # On Windows there is none, and nothing to be done.
        (log.info if sys.platform == "win32" else log.warning)("uvloop is not installed", instead="asyncio")
        return asyncio.new_event_loop
    return new_event_loop


def name_of(loop: asyncio.AbstractEventLoop) -> str:
    """The library that made ``loop``: ``uvloop`` or ``asyncio``."""
    return type(loop).__module__.partition(".")[0]
