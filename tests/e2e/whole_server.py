"""A whole server over a simulated engine of either kind, which must hold nothing when its test is over."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from server.app import App
from server.loading import load_model
from tests.fakes.running import request, serving_of, started, until

ENGINES = ("simulated", "simulated-executor")


@contextlib.asynccontextmanager
async def serving(engine: str, profile: str = "instant", **flags: Any) -> AsyncIterator[tuple[App, GenerationStub]]:
    async with started(load_model, engine__directory=f"{engine}:{profile}", **flags) as (app, channel, _):
        yield app, GenerationStub(channel)
        await until(lambda: not app._open_streams())
        await until(lambda: not len(serving_of(app).registry))
        serving_of(app).registry.check_integrity()
        # The snapshot is the engine thread's, renewed once a turn.
        await until(lambda: nothing_is_held(app))


def nothing_is_held(app: App) -> bool:
    stats = serving_of(app).engine.stats()
    return (stats.running, sum(stats.waiting_by_class), stats.blocks_in_use) == (0, 0, 0)


def say(text: str, **fields: Any) -> pb.GenerateRequest:
    return request(text, **({"max_tokens": 40} | fields))
