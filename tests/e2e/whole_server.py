"""A whole server over a simulated engine of either kind, which must hold nothing when its test is over."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from server.app import App
from server.loading import load_model
from tests.fakes.running import request, started, until

ENGINES = ("simulated", "simulated-executor")


@contextlib.asynccontextmanager
async def serving(engine: str, profile: str = "instant", **flags: Any) -> AsyncIterator[tuple[App, GenerationStub]]:
    async with started(load_model, engine__directory=f"{engine}:{profile}", **flags) as (app, channel, _):
        yield app, GenerationStub(channel)
        await until(lambda: not app._open_streams())
        assert app._registry is not None
        await until(lambda: not len(app._registry))  # type: ignore[arg-type]  # checked above
        app._registry.check_integrity()
        # The snapshot is the engine thread's, renewed once a turn.
        await until(lambda: nothing_is_held(app))


def nothing_is_held(app: App) -> bool:
    assert app._engine is not None
    stats = app._engine.stats()
    return (stats.running, sum(stats.waiting_by_class), stats.blocks_in_use) == (0, 0, 0)


def say(text: str, **fields: Any) -> pb.GenerateRequest:
    return request(text, **({"max_tokens": 40} | fields))
