"""What holds for every call: whatever a handler raises becomes a status, every call is counted, no handler sees what does not parse."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import structlog

from server.errors import InternalError, RequestCancelledError, ServerError
from server.rpc.connections import ConnectionCalls
from server.rpc.context import CallContext
from server.rpc.status import code_name, grpc_status
from server.rpc.wire import Malformed, tolerant

log = structlog.get_logger(__name__)

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
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

    def __init__(self, count: Callable[[str, str], None], calls: ConnectionCalls | None = None) -> None:
        """``count(method, code)`` is called once a call, when it is over. ``calls`` bounds those of one connection."""
        self._count = count
        self._calls = calls
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
        changes: dict[str, Any] = {}
        for kind in KINDS:
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
                return await behaviour(request, context)

        return call

    def _wrap_stream(self, method: str, behaviour: Behaviour) -> Behaviour:
        async def call(request: object, context: CallContext) -> None:
            async with self._translated(method, context):
                answer = behaviour(request, context)
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
            with self._calls.entered(context.peer()) if self._calls is not None else contextlib.nullcontext():
                yield
        except asyncio.CancelledError:
            code = "CANCELLED"
            if not _cancelled_by_grpc():  # something of ours was, and the client would wait for ever
                with contextlib.suppress(Exception):
                    await _abort(context, RequestCancelledError("the call was cancelled"))
            raise
        except grpc.aio.AbortError:
            code = _code_of(context)
            raise
        except ServerError as error:
            code = code_name(error)
            await _abort(context, _without_text(error, method))
        except grpc.aio.InternalError:
            code = "CANCELLED"  # what was to be sent cannot be: the connection is gone
            await _abort(context, RequestCancelledError("the client is gone"))
        except Exception as error:  # noqa: BLE001 - the last line of defence
            code = "INTERNAL"
            await _abort(context, _without_text(error, method))
        finally:
            self._count(method, code)


class ParseGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """The innermost interceptor: only who may call at all hears what is wrong with a message."""

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler]], details: Details
    ) -> Handler:
        handler = await continuation(details)
        if handler is None or handler.request_deserializer is None:
            return handler
        return wrap_behaviour(handler, _require_parsed)._replace(
            request_deserializer=tolerant(handler.request_deserializer)
        )


def wrap_behaviour(handler: Handler, before: Callable[[object, CallContext], None]) -> Handler:
    """``handler`` with ``before`` called first, in its task. What that raises ends the call; CallGuard must be further out."""

    def wrapped(behaviour: Behaviour) -> Behaviour:
        def call(request: object, context: CallContext) -> object:
            before(request, context)
            return behaviour(_parsed(request) if isinstance(request, AsyncIterator) else request, context)

        return call

    found = {kind: behaviour for kind in KINDS if (behaviour := getattr(handler, kind)) is not None}
    return handler._replace(**{kind: wrapped(behaviour) for kind, behaviour in found.items()})


def _require_parsed(request: object, _: object = None) -> None:
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


def _cancelled_by_grpc() -> bool:
    """Whether this call's own task was cancelled: the client is gone, or the port has stopped. No status must be sent then: it cannot be, and
    gRPC would keep what was to be sent for ever, 330 bytes a call (grpc/grpc#43360)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _abort(context: CallContext, error: ServerError) -> None:
    """End the call with a status. Raises AbortError, as gRPC does, unless the client has stopped to read, or is gone."""
    with contextlib.suppress(asyncio.TimeoutError, grpc.aio.InternalError):
        async with asyncio.timeout(ABORT_PATIENCE):
            await context.abort_with_status(grpc_status(error))
