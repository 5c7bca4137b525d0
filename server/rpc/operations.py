"""firsttoken.v1.Operations: facts and load, answered from snapshots, behind no queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from protos.firsttoken.v1 import operations_pb2 as pb
from server.access.tenant import Tenant
from server.engine import Engine, EngineInfo
from server.errors import InvalidRequestError, NotOfferedError
from server.readiness import Readiness, Slot
from server.rpc.context import CallContext
from server.rpc.limits import RequestLimits
from server.rpc.opening import Opener
from server.rpc.prefixes import PrefixOperations
from server.step_record import StepRecord
from server.telemetry.metrics import kv_share
from server.telemetry.patience import Patience
from server.version import server_version


class OperationsParts(msgspec.Struct, frozen=True):
    """What exists once the engine is loaded."""

    engine: Engine
    limits: RequestLimits
    open_streams: Callable[[], int]
    abort: Callable[[str, str], bool]
    """(request id, why): ends a request; False where none is alive."""
    swap: Callable[[str, bool], Awaitable[EngineInfo]] | None = None
    """Serve another directory; True: close what serves first. None where this server cannot."""


class OperationsService(PrefixOperations):
    """Event loop only."""

    def __init__(
        self,
        parts: Slot[OperationsParts],
        readiness: Readiness,
        patience: Patience,
        opener: Opener,
        tenant_named: Callable[[str], Tenant | None],
    ) -> None:
        """``tenant_named``: a tenant of the access file; None where it has none of this name."""
        super().__init__(lambda: parts.get().engine, opener, tenant_named)
        self._parts = parts
        self._patience = patience
        self._readiness = readiness

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: CallContext) -> pb.GetServerInfoResponse:
        parts = self._parts.get()
        info = parts.engine.info
        offered = msgspec.structs.asdict(info.capabilities)
        names = pb.EngineCapabilities.DESCRIPTOR.fields_by_name
        interactive, standard, batch = self._patience.timeouts()
        return pb.GetServerInfoResponse(
            version=server_version(),
            engine=info.kind,
            model=info.model,
            fingerprint=info.fingerprint,
            limits=pb.Limits(**msgspec.structs.asdict(parts.limits)),
            capabilities=pb.EngineCapabilities(**{name: offered[name] for name in names}),
            client_timeouts=pb.ClientTimeouts(interactive=interactive, standard=standard, batch=batch),
        )

    async def Abort(self, request: pb.AbortRequest, context: CallContext) -> pb.AbortResponse:
        if not request.request_id:
            raise InvalidRequestError("request_id", "must not be empty")
        aborted = self._parts.get().abort(request.request_id, "the request was aborted by Operations.Abort")
        return pb.AbortResponse(aborted=aborted)

    async def LoadEngine(self, request: pb.LoadEngineRequest, context: CallContext) -> pb.LoadEngineResponse:
        if not request.directory:
            raise InvalidRequestError("directory", "must not be empty")
        self._readiness.require_open()
        swap = self._parts.get().swap
        if swap is None:
            raise NotOfferedError("this server cannot swap its engine")
        info = await swap(request.directory, request.replace)
        return pb.LoadEngineResponse(engine=info.kind, model=info.model, fingerprint=info.fingerprint)

    async def GetSteps(self, request: pb.GetStepsRequest, context: CallContext) -> pb.GetStepsResponse:
        if request.last < 0:
            raise InvalidRequestError("last", f"must be at least 0, it is {request.last}")
        steps = self._parts.get().engine.recent_steps()
        return pb.GetStepsResponse(steps=[_step(step) for step in steps[-request.last :]])

    async def GetLoad(self, request: pb.GetLoadRequest, context: CallContext) -> pb.GetLoadResponse:
        parts = self._parts.get()
        stats = parts.engine.stats()
        interactive, standard, batch = stats.waiting_by_class
        return pb.GetLoadResponse(
            ready=self._readiness.ready,
            running=stats.running,
            waiting=pb.WaitingByClass(interactive=interactive, standard=standard, batch=batch),
            waiting_tokens=stats.waiting_tokens,
            kv_utilisation=kv_share(stats, stats.blocks_in_use),
            kv_cached=kv_share(stats, stats.blocks_cached),
            open_streams=parts.open_streams(),
            busy=stats.busy,
        )


def _step(record: StepRecord) -> pb.Step:
    values = msgspec.structs.asdict(record)
    interactive, standard, batch = values.pop("waiting_by_class")
    rows = [pb.StepRow(**msgspec.structs.asdict(row)) for row in values.pop("rows")]
    waiting = pb.WaitingByClass(interactive=interactive, standard=standard, batch=batch)
    return pb.Step(waiting=waiting, rows=rows, **values)
