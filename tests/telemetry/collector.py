"""A real collector of traces: an OTLP/gRPC server that keeps what it is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as wire
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(wire.TraceServiceServicer):
    def __init__(self) -> None:
        self.port = 0
        self.spans: list[Span] = []
        self.resource: dict[str, str] = {}
        self.asked = threading.Event()
        self.open = threading.Event()
        """Cleared: it takes calls and does not answer."""
        self.open.set()

    def Export(self, request: service.ExportTraceServiceRequest, context: Any) -> service.ExportTraceServiceResponse:
        self.asked.set()
        self.open.wait()
        for of_resource in request.resource_spans:
            self.resource = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            for scope in of_resource.scope_spans:
                self.spans.extend(scope.spans)
        return service.ExportTraceServiceResponse()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def roots(self) -> list[Span]:
        return [span for span in self.spans if span.name == "generate"]

    def inside(self, parent: Span) -> dict[str, list[Span]]:
        """The spans right below ``parent``, by name."""
        found: dict[str, list[Span]] = {}
        for span in self.spans:
            if span.parent_span_id == parent.span_id:
                found.setdefault(span.name, []).append(span)
        return found


def facts(span: Span) -> dict[str, Any]:
    """A span's attributes as Python values."""
    return {each.key: _value(each.value) for each in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    wire.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector
    finally:
        collector.open.set()
        server.stop(0).wait()
