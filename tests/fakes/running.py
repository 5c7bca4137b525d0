"""A whole server on real sockets, in the test's own event loop, over a fake engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc
import structlog
from prometheus_client.parser import text_string_to_metric_families

from engines.simulated.tokenizer import CHAT_TEMPLATE, tokenizer_json
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from protos.firsttoken.v1.operations_pb2_grpc import OperationsStub
from server.app import App
from server.concurrency import start_daemon
from server.config import Config
from server.config_sources import load_config
from server.loading import LoadedModel
from server.phases import Phases
from server.readiness import State
from server.serving import Serving
from server.swap import EngineSource, Load
from server.telemetry.logging import configure_logging
from server.text.chat import ChatTemplate
from server.text.tokenizer import TextTokenizer
from tests.fakes.fake_engine import FakeEngine


def serving_of(app: App) -> Serving:
    """The engine that serves, with all that goes with it."""
    serving = app._servings.current
    assert serving is not None
    return serving


@dataclass
class Running:
    app: App
    engine: FakeEngine
    channel: Any
    over: asyncio.Task[int]

    @property
    def generation(self) -> GenerationStub:
        return GenerationStub(self.channel)

    @property
    def operations(self) -> OperationsStub:
        return OperationsStub(self.channel)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.app.grpc_port}"

    async def http(self, path: str) -> tuple[int, str]:
        url = f"http://127.0.0.1:{self.app.http_port}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    async def metrics(self) -> dict[str, float]:
        """Every sample, by its name and labels as Prometheus writes them."""
        _, text = await self.http("/metrics")
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {sample_key(sample.name, sample.labels): sample.value for sample in samples}


def sample_key(name: str, labels: dict[str, str]) -> str:
    return name + ("{" + ",".join(f"{key}={value}" for key, value in sorted(labels.items())) + "}" if labels else "")


def configure(**flags: object) -> Config:
    """Free ports; ``grpc__port=1`` means --grpc.port 1."""
    usual = {"grpc.port": "0", "http.port": "0", "telemetry.log_level": "error", "lifecycle.drain_grace": "60"}
    given = {key.replace("__", "."): str(value) for key, value in flags.items()}
    return load_config(None, {}, usual | given).config


def loaded(engine: FakeEngine, *, template: bool = True) -> LoadedModel:
    tokenizer = TextTokenizer.from_json(tokenizer_json())
    return LoadedModel(engine, tokenizer, ChatTemplate(CHAT_TEMPLATE) if template else None)


Loader = Callable[[Config, Phases], LoadedModel]


Check = Callable[[Config], None]


def fits(_: Config) -> None:
    """The check of an engine that nothing is wrong with."""


def make_app(config: Config, load: Loader, another: Load | None = None, check: Check = fits) -> App:
    """As `firsttoken serve` does: loading begins at once, in a thread."""
    phases = Phases()

    def timed() -> LoadedModel:
        with phases.measure("load"):
            return load(config, phases)

    engines = EngineSource(another, check) if another is not None else None
    return App(config, start_daemon(timed, "loader"), phases, engines=engines)


@contextlib.asynccontextmanager
async def running(
    engine: FakeEngine | None = None,
    *,
    template: bool = True,
    another: Load | None = None,
    check: Check = fits,
    **flags: object,
) -> AsyncIterator[Running]:
    """A ready server over a fake engine; it is stopped at the end."""
    engine = engine or FakeEngine()

    def load(config: Config, phases: Phases) -> LoadedModel:
        return loaded(engine, template=template)

    async with started(load, another=another, check=check, **flags) as (app, channel, over):
        yield Running(app, engine, channel, over)


@contextlib.asynccontextmanager
async def started(
    load: Loader, *, another: Load | None = None, check: Check = fits, **flags: object
) -> AsyncIterator[tuple[App, Any, asyncio.Task[int]]]:
    """A ready server over whatever ``load`` gives, with a channel to it and the task of its life."""
    config = configure(**flags)
    configure_logging(config.telemetry)
    try:
        app = make_app(config, load, another, check)
        over = asyncio.create_task(app.run())
        while not app.readiness.ready:
            if over.done():
                raise AssertionError(f"the server ended with {over.result()}")
            await asyncio.wait(
                {over, asyncio.ensure_future(app.readiness.change())}, return_when=asyncio.FIRST_COMPLETED
            )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{app.grpc_port}") as channel:
            yield app, channel, over
        if app.readiness.state in (State.READY, State.CLOSING):
            app.request_stop()
        await over
    finally:
        structlog.reset_defaults()  # what was configured points to this test's own standard error


def request(text: str = "Say something", **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(prompt=pb.Prompt(text=text), **fields)


async def collect(call: AsyncIterable[pb.GenerateResponse]) -> tuple[list[int], str, pb.Final]:
    """All tokens, all text, and the Final, which must be last."""
    tokens: list[int] = []
    text = ""
    final: pb.Final | None = None
    async for message in call:
        assert final is None
        if message.HasField("final"):
            final = message.final
        tokens += message.delta.tokens
        text += message.delta.text
    assert final is not None
    return tokens, text, final


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until ``condition()`` holds; so long that only one that never will takes longer."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is about another thread or process
            await asyncio.sleep(0.005)
