"""A collector of traces that counts spans and forgets them: what a server under measurement sends its traces to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as wire


class TraceSink(wire.TraceServiceServicer):
    def __init__(self) -> None:
        self.endpoint = ""
        self.spans = 0

    def Export(self, request: service.ExportTraceServiceRequest, _: Any) -> service.ExportTraceServiceResponse:  # noqa: N802, ANN401 - gRPC's
        self.spans += sum(len(scope.spans) for each in request.resource_spans for scope in each.scope_spans)
        return service.ExportTraceServiceResponse()


@contextlib.contextmanager
def trace_sink() -> Iterator[TraceSink]:
    sink = TraceSink()
    server = grpc.server(ThreadPoolExecutor(1))
    wire.add_TraceServiceServicer_to_server(sink, server)  # type: ignore[no-untyped-call]
    sink.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield sink
    finally:
        server.stop(0).wait()
