"""The async client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc
import grpc.aio

from firsttoken.client import replies, requests
from firsttoken.client.aio_stream import AsyncStream
from firsttoken.client.base import BaseClient
from firsttoken.client.channels import Stubs
from firsttoken.client.options import Conversation, GenerateOptions, PrefixOptions, Tools
from firsttoken.client.outputs import Answer
from firsttoken.client.patience import ASKING
from firsttoken.client.readiness import ReadinessPoll
from firsttoken.client.retries import Attempts
from firsttoken.client.values import CachedPrefix, ClearedCache, Load, ServerInfo, Step, Warmed
from protos.firsttoken.v1 import operations_pb2


class AsyncClient(BaseClient):
    """Talks to one firsttoken server from one event loop; make one and keep it: it holds the connection.

    ::

        async with AsyncClient("localhost:50051") as client:
            print(await client.generate("The capital of France is", max_tokens=16).text())
    """

    _grpc = grpc.aio
    _asking: asyncio.Task[None] | None = None

    def generate(self, prompt: str | Sequence[int] | None = None, **options: Unpack[GenerateOptions]) -> AsyncStream:
        """As Client.generate: the request is sent at once; read the stream, or ``await`` its text(). Not a coroutine."""
        return AsyncStream(*self._generation(prompt, options))

    async def complete(self, prompt: str | Sequence[int] | None = None, **options: Unpack[GenerateOptions]) -> Answer:
        """As Client.complete; cancelling the task cancels the request."""
        return replies.answer_of(await self._send(*self._generation(prompt, options, whole=True)))

    async def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Conversation | None = None,
        tools: Tools | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """As Client.tokenize."""
        request = requests.tokenize_request(prompt, messages, tools)
        return list((await self._call(self._connections.next().generation.Tokenize, request, timeout)).ids)

    async def detokenize(
        self, ids: Sequence[int], *, show_special_tokens: bool = False, timeout: float | None = None
    ) -> str:
        """As Client.detokenize."""
        request = requests.detokenize_request(ids, show_special_tokens)
        return str((await self._call(self._connections.next().generation.Detokenize, request, timeout)).text)

    async def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """As Client.server_info."""
        method = self._connections.next().operations.GetServerInfo
        return replies.server_info_of(await self._call(method, operations_pb2.GetServerInfoRequest(), timeout))

    async def load(self, *, timeout: float | None = None) -> Load:
        """As Client.load."""
        method = self._connections.next().operations.GetLoad
        return replies.load_of(await self._call(method, operations_pb2.GetLoadRequest(), timeout))

    async def abort(self, request_id: str, *, timeout: float | None = None) -> bool:
        """As Client.abort."""
        request = operations_pb2.AbortRequest(request_id=request_id)
        return bool((await self._call(self._connections.next().operations.Abort, request, timeout)).aborted)

    async def steps(self, last: int = 0, *, timeout: float | None = None) -> list[Step]:
        """As Client.steps."""
        request = operations_pb2.GetStepsRequest(last=last)
        reply = await self._call(self._connections.next().operations.GetSteps, request, timeout)
        return [replies.step_of(step) for step in reply.steps]

    async def load_engine(self, directory: str, *, replace: bool = False, timeout: float | None = None) -> ServerInfo:
        """As Client.load_engine."""
        request = operations_pb2.LoadEngineRequest(directory=directory, replace=replace)
        await self._call(self._connections.next().operations.LoadEngine, request, timeout)
        return await self.server_info(timeout=timeout)

    async def warm_prefix(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[PrefixOptions],
    ) -> Warmed:
        """As Client.warm_prefix."""
        request = requests.warm_request(prompt, options)
        return replies.warmed_of(await self._call(self._connections.next().operations.WarmPrefix, request, timeout))

    async def pin_prefix(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        seconds: float,
        prefix: str | None = None,
        timeout: float | None = None,
        **options: Unpack[PrefixOptions],
    ) -> CachedPrefix:
        """As Client.pin_prefix."""
        request = requests.pin_request(prompt, seconds, prefix, options)
        reply = await self._call(self._connections.next().operations.PinPrefix, request, timeout)
        return replies.prefix_of(reply.prefix)

    async def unpin_prefix(self, prefix: str, *, timeout: float | None = None) -> bool:
        """As Client.unpin_prefix."""
        request = operations_pb2.UnpinPrefixRequest(prefix=prefix)
        return bool((await self._call(self._connections.next().operations.UnpinPrefix, request, timeout)).unpinned)

    async def list_prefixes(self, most: int = 20, *, timeout: float | None = None) -> list[CachedPrefix]:
        """As Client.list_prefixes."""
        request = operations_pb2.ListPrefixesRequest(most=most)
        reply = await self._call(self._connections.next().operations.ListPrefixes, request, timeout)
        return [replies.prefix_of(prefix) for prefix in reply.prefixes]

    async def clear_cache(self, *, pinned: bool = False, timeout: float | None = None) -> ClearedCache:
        """As Client.clear_cache."""
        request = operations_pb2.ClearCacheRequest(pinned=pinned)
        return replies.cleared_of(await self._call(self._connections.next().operations.ClearCache, request, timeout))

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """As Client.wait_ready."""
        poll = ReadinessPoll(self._address, timeout)
        while not poll.ready:
            try:
                reply = await self._connections.next().health.Check(
                    poll.request, timeout=poll.attempt_timeout(), metadata=self._metadata
                )
                poll.answered(reply)
            except grpc.RpcError as failure:
                poll.failed(failure)
            await asyncio.sleep(poll.pause())

    async def close(self) -> None:
        """Close the connection; streams that still run are cancelled. Idempotent."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        for channel in self._connections.take():
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _ask_timeouts(self, stubs: Stubs) -> None:
        self._asking = asyncio.get_running_loop().create_task(self._learn_timeouts(stubs))

    async def _learn_timeouts(self, stubs: Stubs) -> None:
        request = operations_pb2.GetServerInfoRequest()
        with contextlib.suppress(grpc.RpcError):
            self._patience.learn(await stubs.operations.GetServerInfo(request, timeout=ASKING, metadata=self._metadata))

    async def _call(self, method: Callable[..., Any], request: Any, timeout: float | None) -> Any:  # noqa: ANN401 - grpc has no types
        return await self._send(
            lambda left: method(request, timeout=left, metadata=self._metadata), self._attempts(timeout)
        )

    async def _send(self, send: Callable[[float | None], Any], attempts: Attempts) -> Any:  # noqa: ANN401 - as above
        while True:
            try:
                return await send(attempts.remaining())
            except grpc.RpcError as failure:
                # Headers mean that the server has taken the request in.
                await asyncio.sleep(attempts.next_delay(failure, taken=bool(len(failure.initial_metadata() or ()))))
