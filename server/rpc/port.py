"""The gRPC port: which services it carries, and the transport's settings with their reasons."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc

from protos.firsttoken.v1 import generation_pb2, generation_pb2_grpc, operations_pb2, operations_pb2_grpc
from protos.inference import grpc_service_pb2, grpc_service_pb2_grpc
from server.config_ports import GrpcConfig
from server.readiness import Readiness
from server.rpc.health import HealthServicer
from server.rpc.reflection import add_reflection
from server.rpc.tls import ServerCertificates

SERVICES = (
    generation_pb2.DESCRIPTOR.services_by_name["Generation"].full_name,
    operations_pb2.DESCRIPTOR.services_by_name["Operations"].full_name,
    grpc_service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name,
)
HEALTH = "grpc.health.v1.Health"
MANY = 2**31 - 1
ON_THE_WAY, LONGEST_WAY = 0.1, 2.0
"""Seconds without a new call after which none that thought the port ready is on its way any more; seconds after which it ends though they still
come."""


def address_of(config: GrpcConfig, port: int) -> str:
    """Where to listen, in gRPC's notation."""
    if config.host.startswith("unix:"):
        return config.host
    return f"[{config.host}]:{port}" if ":" in config.host else f"{config.host}:{port}"


def transport_options(config: GrpcConfig) -> list[tuple[str, int]]:
    """gRPC core's channel arguments."""
    options = {
        "grpc.max_receive_message_length": config.max_message_bytes,
        # Two servers on one port would share its connections silently; a taken port must fail loudly instead.
        "grpc.so_reuseport": 0,
        # Soft and hard alike: a call with more is refused with RESOURCE_EXHAUSTED, before anything of ours sees it.
        "grpc.max_metadata_size": config.max_metadata_bytes,
        "grpc.absolute_max_metadata_size": config.max_metadata_bytes,
        # A limit here would queue calls where nobody sees them; admission is ours.
        "grpc.max_concurrent_streams": MANY,
        # Clients ping through long silent prefills, and while idle. The default would cut off whoever pings more than once in 5 min.
        "grpc.http2.min_ping_interval_without_data_ms": _milliseconds(config.min_ping_interval),
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.keepalive_time_ms": _milliseconds(config.keepalive_time),
        "grpc.keepalive_timeout_ms": _milliseconds(config.keepalive_timeout),
        "grpc.http2.max_pings_without_data": 0,
    }
    if config.max_connection_age:
        options["grpc.max_connection_age_ms"] = _milliseconds(config.max_connection_age)
        options["grpc.max_connection_age_grace_ms"] = _milliseconds(config.max_connection_age_grace)
    if config.max_connection_idle:
        options["grpc.max_connection_idle_ms"] = _milliseconds(config.max_connection_idle)
    return list(options.items())


class _Arrivals(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Counts the calls that have come."""

    def __init__(self) -> None:
        self.count = 0

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: object) -> Any:  # noqa: ANN401
        self.count += 1
        return await continuation(details)


class GrpcPort:
    """A grpc.aio server. Event loop only."""

    def __init__(
        self,
        config: GrpcConfig,
        readiness: Readiness,
        *,
        generation: generation_pb2_grpc.GenerationServicer,
        operations: operations_pb2_grpc.OperationsServicer,
        inference: grpc_service_pb2_grpc.GRPCInferenceServiceServicer,
        interceptors: Sequence[object],
        certificates: ServerCertificates | None = None,
    ) -> None:
        """``interceptors``: outermost first. Encrypted where there are ``certificates``."""
        self._config = config
        self._certificates = certificates
        self.own_target = ""
        """Where this process itself reaches the port, without TLS; once started."""
        self._own_folder: str | None = None
        self._arrivals = _Arrivals()
        self._server = grpc.aio.server(interceptors=[self._arrivals, *interceptors], options=transport_options(config))
        generation_pb2_grpc.add_GenerationServicer_to_server(generation, self._server)
        operations_pb2_grpc.add_OperationsServicer_to_server(operations, self._server)
        grpc_service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(inference, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(readiness, SERVICES), self._server)
        if config.reflection:
            add_reflection(self._server, [*SERVICES, HEALTH])

    async def start(self) -> int:
        """Listen and answer; returns the port. Raises OSError where it is taken."""
        address = address_of(self._config, self._config.port)
        try:
            port: int = self._add_port(address)
        except RuntimeError as error:
            raise OSError(f"grpc.port: cannot listen on {address}; is another server running there?") from error
        self.own_target = address_of(self._config, port)
        if self._certificates is not None:
            # The server has no certificate to show itself as a client: it calls itself by a socket that no other user can reach.
            self._own_folder = tempfile.mkdtemp(prefix="firsttoken-")
            self.own_target = f"unix:{Path(self._own_folder) / 'warm-up'}"
            self._server.add_insecure_port(self.own_target)
        await self._server.start()
        return port

    def close_own_target(self) -> None:
        """The server has called itself for the last time. Idempotent."""
        folder, self._own_folder = self._own_folder, None
        if folder is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)

    def _add_port(self, address: str) -> Any:  # noqa: ANN401 - gRPC has no types
        if self._certificates is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, self._certificates.credentials())

    async def stop(self, grace: float) -> None:
        """Refuse new calls, let running ones finish for ``grace`` seconds, then cut them. A second call may shorten it.

        Whoever stops a port has turned it not ready before: calls that are on their way then get UNAVAILABLE of their handlers, where
        gRPC would end them as CANCELLED once it stops. The grace begins when they have come: after LONGEST_WAY seconds at
        most, and never later than after ``grace``.
        """
        self.close_own_target()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(grace, LONGEST_WAY)):
                await self._quiet()
        await self._server.stop(grace)

    async def _quiet(self) -> None:
        """Until no call has come for a while. A server that had no processor takes them in one by one, long after they were sent."""
        seen = -1
        while seen != self._arrivals.count:
            seen = self._arrivals.count
            await asyncio.sleep(ON_THE_WAY)


def _milliseconds(seconds: float) -> int:
    return min(MANY, int(seconds * 1000))
