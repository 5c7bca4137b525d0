"""Whatever a handler does, the client gets a status, and no text that was not meant for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, Literal

import grpc
import pytest

from server.config import TelemetryConfig
from server.errors import DeadlineError
from server.rpc.interceptors import CallGuard
from server.telemetry.logging import configure_logging
from tests.fakes.running import until

SECRET = "the secret inside"
PROMPT = "what somebody wrote"


async def cancel_itself(_: bytes, context: Any) -> bytes:
    raise asyncio.CancelledError


async def leak(_: bytes, context: Any) -> bytes:
    raise ValueError(SECRET)


async def fail_in_words(_: bytes, context: Any) -> bytes:
    raise DeadlineError("late")


async def abort_itself(_: bytes, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.NOT_FOUND, "nowhere")
    return b""


async def leak_midway(_: bytes, context: Any) -> AsyncIterator[bytes]:
    yield b"one"
    raise ValueError(SECRET)


async def cancel_midway(_: bytes, context: Any) -> None:
    await context.write(b"one")
    raise asyncio.CancelledError


HANDLERS: dict[str, Callable[..., Any]] = {
    handler.__name__: handler
    for handler in (cancel_itself, leak, fail_in_words, abort_itself, leak_midway, cancel_midway)
}
STREAMS = {"leak_midway", "cancel_midway"}


async def ask(method: str) -> tuple[grpc.StatusCode, str, list[tuple[str, str]], int]:
    counted: list[tuple[str, str]] = []
    server = grpc.aio.server(interceptors=[CallGuard(lambda *call: counted.append(call))])
    kind = grpc.unary_stream_rpc_method_handler if method in STREAMS else grpc.unary_unary_rpc_method_handler
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {method: kind(HANDLERS[method])}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    messages = 0
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_stream(f"/t.T/{method}")(PROMPT.encode(), timeout=60)
        try:
            async for _ in call:
                messages += 1
        except grpc.aio.AioRpcError as error:
            code, details = error.code(), error.details()
        else:
            raise AssertionError(f"{method} ended well")
    await until(lambda: bool(counted))  # the client may know before the handler has counted its call
    await server.stop(5)
    return code, details, counted, messages


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("method", ["leak", "leak_midway"])
async def test_an_unknown_exception_becomes_an_id(
    method: str, log_format: Literal["json", "console"], capfd: pytest.CaptureFixture[str]
) -> None:
    configure_logging(TelemetryConfig(log_format=log_format))
    code, details, counted, messages = await ask(method)
    assert code is grpc.StatusCode.INTERNAL
    assert SECRET not in details
    assert messages == (method in STREAMS)
    assert counted == [(f"/t.T/{method}", "INTERNAL")]
    error_id = details.split()[2].rstrip(";")
    out, err = capfd.readouterr()
    assert error_id in out + err
    assert SECRET in out + err
    assert PROMPT not in out + err  # nor any other local variable of the frames


@pytest.mark.parametrize("method", ["cancel_itself", "cancel_midway"])
async def test_a_cancelled_handler_never_hangs_its_client_case_D10_D14(method: str) -> None:
    code, _, counted, _ = await ask(method)
    assert code is grpc.StatusCode.CANCELLED
    assert counted == [(f"/t.T/{method}", "CANCELLED")]


class RecordingContext:
    """Of a call; remembers with which statuses it was to end."""

    def __init__(self) -> None:
        self.statuses: list[grpc.StatusCode] = []

    async def abort_with_status(self, status: grpc.Status) -> None:
        self.statuses.append(status.code)


async def wait(_: bytes, context: Any) -> None:
    await asyncio.sleep(60)


@pytest.mark.parametrize(("handler", "statuses"), [(wait, []), (cancel_itself, [grpc.StatusCode.CANCELLED])])
async def test_a_call_that_grpc_cancelled_gets_no_status(
    handler: Callable[..., Any], statuses: list[grpc.StatusCode]
) -> None:
    """It could not be sent, and gRPC would keep it in memory."""

    async def offered(_: object) -> Any:
        return grpc.unary_stream_rpc_method_handler(handler)

    guard = CallGuard(lambda _method, _code: None)
    guarded = await guard.intercept_service(offered, SimpleNamespace(method="/t.T/any"))
    context = RecordingContext()
    call = asyncio.ensure_future(guarded.unary_stream(b"", context))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert context.statuses == statuses


async def test_known_errors_and_aborts_keep_their_words() -> None:
    assert (await ask("fail_in_words"))[:3] == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "late",
        [("/t.T/fail_in_words", "DEADLINE_EXCEEDED")],
    )
    assert (await ask("abort_itself"))[:3] == (
        grpc.StatusCode.NOT_FOUND,
        "nowhere",
        [("/t.T/abort_itself", "NOT_FOUND")],
    )
