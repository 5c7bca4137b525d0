"""inference.GRPCInferenceService: thin methods over :mod:`server.rpc.kserve.calls`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

import msgspec

from protos.inference import grpc_service_pb2 as wire
from protos.inference.grpc_service_pb2_grpc import GRPCInferenceServiceServicer
from server.engine import EngineStats
from server.errors import NotOfferedError, ReaderStalledError, ServerError
from server.readiness import Readiness, Slot
from server.rpc.context import CallContext
from server.rpc.generation import REQUEST_ID_KEY
from server.rpc.kserve.calls import InferCalls
from server.rpc.kserve.models import ModelBook
from server.rpc.kserve.statistics import Statistics
from server.rpc.opening import Opener
from server.rpc.status import code_name
from server.streams import Stream

NAME = "firsttoken"
EXTENSIONS = ("model_configuration", "model_repository", "parameters", "schedule_policy", "statistics")
STATUS_ERRORS_KEY = "triton_grpc_error"
"""Metadata of a stream by which a client asks for statuses where this protocol has messages."""
NOT_OFFERED = {
    "RepositoryModelLoad": "a server serves the engine that it was started with",
    "RepositoryModelUnload": "a server serves the engine that it was started with",
    "SystemSharedMemoryStatus": "tensors travel in messages",
    "SystemSharedMemoryRegister": "tensors travel in messages",
    "SystemSharedMemoryUnregister": "tensors travel in messages",
    "CudaSharedMemoryStatus": "tensors travel in messages",
    "CudaSharedMemoryRegister": "tensors travel in messages",
    "CudaSharedMemoryUnregister": "tensors travel in messages",
    "TraceSetting": "tracing is configured where the server is started",
    "LogSettings": "logging is configured where the server is started",
}


class InferenceParts(msgspec.Struct, frozen=True):
    """What exists once the engine is loaded."""

    models: ModelBook
    statistics: Statistics
    stats: Callable[[], EngineStats]


class InferenceService(GRPCInferenceServiceServicer):
    """Event loop only. Errors are raised; :mod:`server.rpc.interceptors` makes statuses of them."""

    def __init__(self, parts: Slot[InferenceParts], opener: Opener, readiness: Readiness, version: str) -> None:
        self._parts = parts
        self._opener = opener
        self._readiness = readiness
        self._version = version

    async def ServerLive(self, request: wire.ServerLiveRequest, context: CallContext) -> wire.ServerLiveResponse:
        return wire.ServerLiveResponse(live=True)

    async def ServerReady(self, request: wire.ServerReadyRequest, context: CallContext) -> wire.ServerReadyResponse:
        return wire.ServerReadyResponse(ready=self._readiness.ready)

    async def ModelReady(self, request: wire.ModelReadyRequest, context: CallContext) -> wire.ModelReadyResponse:
        known = self._readiness.ready and request.name in self._parts.get().models.kinds
        return wire.ModelReadyResponse(ready=known)

    async def ServerMetadata(
        self, request: wire.ServerMetadataRequest, context: CallContext
    ) -> wire.ServerMetadataResponse:
        return wire.ServerMetadataResponse(name=NAME, version=self._version, extensions=EXTENSIONS)

    async def ModelMetadata(
        self, request: wire.ModelMetadataRequest, context: CallContext
    ) -> wire.ModelMetadataResponse:
        return self._parts.get().models.metadata(request.name, request.version)

    async def ModelConfig(self, request: wire.ModelConfigRequest, context: CallContext) -> wire.ModelConfigResponse:
        return self._parts.get().models.config(request.name, request.version)

    async def RepositoryIndex(
        self, request: wire.RepositoryIndexRequest, context: CallContext
    ) -> wire.RepositoryIndexResponse:
        ready = self._readiness.ready
        if request.ready and not ready:
            return wire.RepositoryIndexResponse()
        return self._parts.get().models.index(ready=ready)

    async def ModelStatistics(
        self, request: wire.ModelStatisticsRequest, context: CallContext
    ) -> wire.ModelStatisticsResponse:
        parts = self._parts.get()
        if request.name:
            parts.models.kind(request.name, request.version)
        names = [request.name] if request.name else list(parts.models.kinds)
        steps = parts.stats().steps
        return wire.ModelStatisticsResponse(model_stats=[parts.statistics.message(name, steps) for name in names])

    async def ModelInfer(self, request: wire.ModelInferRequest, context: CallContext) -> wire.ModelInferResponse:
        async def let_in(request_id: str) -> None:
            await context.send_initial_metadata(((REQUEST_ID_KEY, request_id),))

        return await self._calls().whole(request, context, let_in)

    async def ModelStreamInfer(self, requests: AsyncIterator[wire.ModelInferRequest], context: CallContext) -> None:
        """Requests run side by side; their responses interleave. Ends when the client has said all and heard all."""
        call = _StreamCall(self._calls(), context)
        try:
            async with asyncio.TaskGroup() as group:
                async for request in requests:
                    group.create_task(call.run(request))
        except BaseExceptionGroup as failures:
            # The first failure has ended the others; it speaks for all.
            raise failures.exceptions[0] from None

    def _calls(self) -> InferCalls:
        parts = self._parts.get()
        return InferCalls(self._opener, parts.models, parts.statistics)


class _StreamCall:
    """One ModelStreamInfer: many requests, one writer at a time."""

    def __init__(self, calls: InferCalls, context: CallContext) -> None:
        self._calls = calls
        self._context = context
        self._lock = asyncio.Lock()
        asked = dict(context.invocation_metadata() or ()).get(STATUS_ERRORS_KEY, "")
        self._statuses = str(asked).lower() == "true"

    async def run(self, request: wire.ModelInferRequest) -> None:
        """One request. Its failure is a message that leaves the others alone, as this protocol has it, unless the client asked for
        statuses; a client that does not read loses the whole call."""
        try:
            await self._calls.stream(request, self._context, self._send)
        except ReaderStalledError:
            raise
        except ServerError as error:
            if self._statuses:
                raise
            await self._fail(request, error)

    async def _send(self, response: wire.ModelInferResponse, stream: Stream | None) -> None:
        async with self._lock:
            if stream is not None:
                stream.writing()
            await self._context.write(wire.ModelStreamInferResponse(infer_response=response))
            if stream is not None:
                stream.written()

    async def _fail(self, request: wire.ModelInferRequest, error: ServerError) -> None:
        response = wire.ModelInferResponse(model_name=request.model_name, id=request.id)
        response.parameters["triton_final_response"].bool_param = True
        message = f"{code_name(error)}: {error}"
        async with self._lock:
            await self._context.write(wire.ModelStreamInferResponse(error_message=message, infer_response=response))


def _refusal(name: str) -> Callable[..., object]:
    async def refuse(*_: object) -> NoReturn:
        raise NotOfferedError(f"{name} is not offered: {NOT_OFFERED[name]}")

    return refuse


for _name in NOT_OFFERED:
    setattr(InferenceService, _name, _refusal(_name))
