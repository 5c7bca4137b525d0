"""grpc.health.v1 over the one readiness object: Check and Watch, for the server and for each service by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from server.errors import UnavailableError
from server.readiness import Readiness, State
from server.rpc.context import CallContext


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # gRPC's packages have no types
    """Each answer is O(1) and queues behind no request. (The packaged servicer loses watchers when another one leaves.)"""

    def __init__(self, readiness: Readiness, services: Iterable[str]) -> None:
        self._readiness = readiness
        self._services = frozenset(services) | {""}

    async def Check(self, request: HealthCheckRequest, context: CallContext) -> HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"service: unknown, there are {sorted(self._services)}")
        return self._now(request.service)

    async def Watch(self, request: HealthCheckRequest, _: CallContext) -> AsyncIterator[HealthCheckResponse]:
        """Every change, until the server drains: then the stream ends, because it would hold the shutdown up."""
        last = None
        while True:
            current = self._now(request.service)
            if current != last:
                yield current
                last = current
            if self._readiness.state in (State.DRAINING, State.FAILED):
                raise UnavailableError("the server is shutting down")
            await self._readiness.change()

    def _now(self, service: str) -> HealthCheckResponse:
        kinds = HealthCheckResponse
        if service not in self._services:
            return kinds(status=kinds.SERVICE_UNKNOWN)
        return kinds(status=kinds.SERVING if self._readiness.ready else kinds.NOT_SERVING)
