"""What holds for every call: whatever a handler raises becomes a status, and every call is counted."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import structlog

from server.errors import InternalError, RequestCancelledError, ServerError
from server.rpc.context import CallContext
from server.rpc.status import code_name, grpc_status
from server.rpc.wire import Malformed, tolerant

log = structlog.get_logger(__name__)

ABORT_PATIENCE = 2.0
"""Seconds to wait until a status is on its way. It queues behind what the client has not read; it is sent even if we no longer
wait."""

Handler: TypeAlias = Any
"""grpc.RpcMethodHandler, a named tuple that gRPC does not type."""
Details: TypeAlias = Any
"""grpc.HandlerCallDetails."""
Behaviour: TypeAlias = Callable[[object, CallContext], Any]
"""A handler's coroutine function, or its asynchronous generator function."""


class CallGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """The outermost interceptor. No text of an unknown exception ever reaches a client: they get an id that the log has, too."""

    def __init__(self, count: Callable[[str, str], None]) -> None:
        """``count(method, code)`` is called once a call, when it is over."""
        self._count = count
        self._guarded: dict[str, Handler] = {}

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler]], details: Details
    ) -> Handler:
        guarded = self._guarded.get(details.method)
        if guarded is None:
            handler = await continuation(details)
            if handler is None:
                return None  # gRPC answers UNIMPLEMENTED; names that clients make up are not kept
            guarded = self._guarded[details.method] = self._guard(details.method, handler)
        return guarded

    def _guard(self, method: str, handler: Handler) -> Handler:
        parse = handler.request_deserializer
        changes: dict[str, Any] = {}
        if parse is not None:
            changes["request_deserializer"] = tolerant(parse)
        for kind in ("unary_unary", "unary_stream", "stream_unary", "stream_stream"):
            behaviour = getattr(handler, kind)
            if behaviour is not None:
                wrap = self._wrap_stream if handler.response_streaming else self._wrap_unary
                changes[kind] = wrap(method, behaviour)
        return handler._replace(**changes)

    def _wrap_unary(
        self, method: str, behaviour: Callable[[Any, Any], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def call(request: object, context: CallContext) -> object:
            async with self._translated(method, context):
                _require_parsed(request)
                return await behaviour(request, context)

        return call

    def _wrap_stream(self, method: str, behaviour: Behaviour) -> Behaviour:
        async def call(request: object, context: CallContext) -> None:
            async with self._translated(method, context):
                _require_parsed(request)
                answer = behaviour(_parsed(request) if isinstance(request, AsyncIterator) else request, context)
                if hasattr(answer, "__aiter__"):
                    async for message in answer:
                        await context.write(message)
                else:
                    await answer

        return call

    @contextlib.asynccontextmanager
    async def _translated(self, method: str, context: CallContext) -> AsyncIterator[None]:
        code = "OK"
        try:
            yield
        except asyncio.CancelledError:
            code = "CANCELLED"
            # Where the client is gone this fails, and nobody minds. Where something of ours was cancelled instead, the client
            # would otherwise wait for ever.
            with contextlib.suppress(Exception):
                await _abort(context, RequestCancelledError("the call was cancelled"))
            raise
        except grpc.aio.AbortError:
            code = _code_of(context)
            raise
        except ServerError as error:
            code = code_name(error)
            await _abort(context, _without_text(error, method))
        except Exception as error:  # noqa: BLE001 - the last line of defence
            code = "INTERNAL"
            await _abort(context, _without_text(error, method))
        finally:
            self._count(method, code)


def _require_parsed(request: object) -> None:
    if isinstance(request, Malformed):
        raise request.error


async def _parsed(requests: AsyncIterator[object]) -> AsyncIterator[object]:
    """The requests of a stream; raises where one could not be parsed."""
    async for request in requests:
        _require_parsed(request)
        yield request


def _without_text(error: Exception, method: str) -> ServerError:
    """What a client may see of ``error``."""
    if isinstance(error, ServerError) and not isinstance(error, InternalError):
        return error
    error_id = secrets.token_hex(8)
    request_id = getattr(error, "request_id", "")
    log.error("internal error", error_id=error_id, method=method, request=request_id or None, exc_info=error)
    internal = InternalError(f"internal error {error_id}; the server's log has the details under this id")
    internal.request_id = request_id
    return internal


def _code_of(context: CallContext) -> str:
    code = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else "OK"


async def _abort(context: CallContext, error: ServerError) -> None:
    """End the call with a status. Raises AbortError, as gRPC does, unless the client has stopped to read."""
    with contextlib.suppress(asyncio.TimeoutError):
        async with asyncio.timeout(ABORT_PATIENCE):
            await context.abort_with_status(grpc_status(error))
