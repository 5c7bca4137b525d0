"""Server reflection under both of its names: old clients ask for v1alpha, new ones for v1; the messages are the same."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Let clients list and describe ``services``."""
    names = [*services, *SERVICES]
    servicer = reflection.aio.ReflectionServicer(names)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}) for name in SERVICES]
    server.add_generic_rpc_handlers(tuple(handlers))
