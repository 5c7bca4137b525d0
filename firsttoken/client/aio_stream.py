"""The async stream: an async iterator of deltas that is cancelled by leaving it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from firsttoken.client.outputs import Answer, Delta, Final, PromptEcho
from firsttoken.client.record import REQUEST_ID_KEY, StreamRecord
from firsttoken.client.retries import Attempts
from firsttoken.errors import CallCancelledError, StreamStateError
from protos.firsttoken.v1 import generation_pb2 as pb


class AsyncStream:
    """The output of one request, as it appears::

        async for delta in client.generate("The capital of France is"):
            print(delta.text, end="", flush=True)

    Leaving the loop early, close(), the end of an ``async with`` block and the cancellation of the reading task cancel the
    request: the server stops computing it. Belongs to one event loop; one task reads, any may close().
    Reading raises the CallErrors of :mod:`firsttoken.errors`.
    """

    def __init__(self, send: Callable[[float | None], Any], attempts: Attempts) -> None:
        self._send = send
        self._attempts = attempts
        self._record = StreamRecord()
        self._closed = True
        self._loop = asyncio.get_running_loop()
        self._call = send(attempts.remaining())
        self._closed = False

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self._deltas()

    async def text(self) -> str:
        """Read to the end; the whole text, of several outputs the first one's."""
        async for _ in self:
            pass
        return self._record.text

    async def answer(self) -> Answer:
        """As Stream.answer."""
        async for _ in self:
            pass
        return self._record.answer

    @property
    def final(self) -> Final:
        """How the request ended. Raises StreamStateError before it has."""
        return self._record.final

    @property
    def prompt(self) -> PromptEcho | None:
        """As Stream.prompt."""
        return self._record.prompt

    @property
    def request_id(self) -> str | None:
        """As Stream.request_id."""
        return self._record.request_id

    @property
    def first_token_seconds(self) -> float | None:
        """From sending the request until its first token was here; None while there is none. Retries count."""
        return self._record.first_token_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first, by the time since the first; None with fewer than two."""
        return self._record.tokens_per_second

    def close(self) -> None:
        """Cancel the request if it still runs. Idempotent."""
        self._closed = True
        self._call.cancel()

    def __del__(self) -> None:
        """A stream that nobody can read any more is cancelled; the collector may run in any thread."""
        if not self._closed:
            with suppress(RuntimeError):  # the loop is closed, and its calls are over
                self._loop.call_soon_threadsafe(self._call.cancel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _deltas(self) -> AsyncIterator[Delta]:
        if self._record.ended:
            return
        if self._closed:
            raise StreamStateError("the stream was closed before its end")
        try:
            while (message := await self._next_message()) is not None:
                if (delta := self._record.take(message)) is not None:
                    yield delta
        finally:
            self.close()
        self._record.require_end()

    async def _next_message(self) -> pb.GenerateResponse | None:
        """The next message, after as many attempts as it takes; None at the end."""
        while True:
            try:
                message = await self._call.read()
            except grpc.RpcError as failure:
                await self._again(failure)
            except asyncio.CancelledError:
                self._raise_if_closed()
                raise
            else:
                if not self._record.messages:
                    self._record.request_id = dict(await self._call.initial_metadata()).get(REQUEST_ID_KEY)
                return None if message is grpc.aio.EOF else message

    async def _again(self, failure: grpc.RpcError) -> None:
        """Send the call again, after a while. Raises the failure's CallError where that must not be done."""
        taken = bool(self._record.messages or len(failure.initial_metadata() or ()))
        await asyncio.sleep(self._attempts.next_delay(failure, taken=taken))
        if self._closed:
            raise StreamStateError("the stream was closed before its end") from failure
        self._call = self._send(self._attempts.remaining())

    def _raise_if_closed(self) -> None:
        """grpc.aio tells a call's local cancel by CancelledError, as if the reading task had been cancelled."""
        task = asyncio.current_task()
        if self._closed and not (task is not None and task.cancelling()):
            raise CallCancelledError("the stream was closed while it was read", status="CANCELLED")
