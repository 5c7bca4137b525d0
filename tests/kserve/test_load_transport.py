"""The load tool's own transport of this wire, which shares nothing with the server but the protocol, against the server."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from loadtest.record import Usage
from loadtest.transports.base import Ask, Target
from loadtest.transports.kserve import KserveTransport
from tests.e2e.whole_server import ENGINES, say, serving
from tests.fakes.running import collect

PROMPT = "Tell me"


class Heard:
    """Implements loadtest.transports.base.Measurement."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.over: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

    def on_content(self, tokens: int, now: float, *, ids: list[int] | None = None, text: str = "") -> None:
        self.ids += ids or []
        self.text += text

    def on_usage(self, usage: Usage) -> None:
        """This wire tells none."""

    def on_over(self, status: str, detail: str, now: float) -> None:
        self.over.set_result((status, detail))


def ask(*, tokens: bool, max_tokens: int = 25) -> Ask:
    return Ask(
        ids=np.frombuffer(PROMPT.encode(), np.uint8).astype(np.int32) if tokens else None,
        text=None if tokens else PROMPT,
        max_tokens=max_tokens,
        priority="standard",
        salt="",
        ttft_deadline=30.0,
        deadline=None,
        ignore_end=False,
        stalls=False,
    )


@pytest.mark.parametrize("endpoint", ["text", "tokens"])
@pytest.mark.parametrize("engine", ENGINES)
async def test_it_hears_what_the_native_wire_says_and_a_good_end(engine: str, endpoint: str) -> None:
    async with serving(engine, "laptop", lifecycle__warm_up=False) as (app, stub):
        ids, text, _ = await collect(stub.Generate(say(PROMPT, max_tokens=25)))
        transport = KserveTransport(Target("kserve", f"127.0.0.1:{app.grpc_port}", endpoint=endpoint))
        facts = await transport.open()
        assert facts.engine.startswith("firsttoken ")
        heard = Heard()
        request = ask(tokens=endpoint == "tokens")
        await transport.start(request, transport.encode(request), heard)
        assert await asyncio.wait_for(heard.over, 90) == ("OK", "")
        assert (heard.ids, heard.text) == ((ids, "") if endpoint == "tokens" else ([], text))
        await transport.close()


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_refused_request_is_told_in_the_stream(engine: str) -> None:
    async with serving(engine) as (app, _):
        transport = KserveTransport(Target("kserve", f"127.0.0.1:{app.grpc_port}"))
        await transport.open()
        heard, request = Heard(), ask(tokens=False, max_tokens=-4)
        await transport.start(request, transport.encode(request), heard)
        status, detail = await asyncio.wait_for(heard.over, 90)
        assert status == "STREAM_ERROR"
        assert detail.startswith("INVALID_ARGUMENT: max_tokens: ")
        await transport.close()
