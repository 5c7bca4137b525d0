"""Traces by OpenTelemetry, sent by OTLP over gRPC. Imported only where ``telemetry.otlp_endpoint`` is set.

A request's spans are made when it is over, out of moments that were noted anyway; only its own span is opened when it
arrives, because the sampler decides then. Sampling: what the caller's traceparent says (W3C Trace Context), else a share of the requests.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace import Tracer as OtelTracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from server.telemetry.span_queue import SpanQueue
from server.telemetry.trace import CountSpans, Metadata, RequestTrace, SpanSketch, Value

log = structlog.get_logger(__name__)

EXPORT_TIMEOUT = 10
"""Seconds that one batch may take, its retries included."""
SERVER_FAULTS = frozenset({"error", "unavailable", "deadline"})
"""Outcomes that make a span an error: those of gRPC's statuses that OpenTelemetry's conventions count as the server's."""
_CONTEXT_KEYS = ("traceparent", "tracestate")


class OtlpTracer:
    """Implements :class:`server.telemetry.trace.Tracer`."""

    def __init__(self, endpoint: str, *, share: float, version: str, count: CountSpans) -> None:
        """``endpoint``: http://HOST:PORT or https://HOST:PORT of a collector. ``share``: of the requests whose caller did not decide.
        Raises ValueError, naming the knob."""
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(
                f"telemetry.otlp_endpoint: must be http://HOST:PORT or https://HOST:PORT, it is {endpoint!r}"
            )
        # It complains once a batch; the queue says once that the collector does not answer.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
        exporter = OTLPSpanExporter(endpoint=endpoint, insecure=parts.scheme == "http", timeout=EXPORT_TIMEOUT)
        self._queue = SpanQueue(exporter, count)
        name = os.environ.get("OTEL_SERVICE_NAME", "firsttoken")
        provider = TracerProvider(
            sampler=ParentBased(root=TraceIdRatioBased(share)),
            resource=Resource.create({"service.name": name, "service.version": version}),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(self._queue)
        self._tracer = provider.get_tracer("firsttoken", version)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, metadata: Metadata, arrival: float) -> RequestTrace | None:
        zero = time.time_ns() - round(time.monotonic() * 1e9)
        span = self._tracer.start_span(
            "generate", self._parent(metadata), kind=SpanKind.SERVER, start_time=zero + round(arrival * 1e9)
        )
        return _OpenTrace(self._tracer, span, zero) if span.is_recording() else None

    def close(self, timeout: float) -> None:
        self._queue.close(timeout)

    def _parent(self, metadata: Metadata) -> Context:
        """Of the caller's metadata the trace context alone is looked at."""
        found = {key: str(value) for key, value in metadata if key in _CONTEXT_KEYS}
        # An empty context: without one the thread's current span would be taken.
        return self._propagator.extract(found, Context())


class _OpenTrace:
    """Implements :class:`server.telemetry.trace.RequestTrace`."""

    def __init__(self, tracer: OtelTracer, span: Span, zero: int) -> None:
        self.id = format_trace_id(span.get_span_context().trace_id)
        self._tracer = tracer
        self._span = span
        self._zero = zero
        """Nanoseconds since the epoch when the monotonic clock was 0."""

    def end(self, parts: Sequence[SpanSketch], facts: Mapping[str, Value], outcome: str) -> None:
        try:
            self._add(parts, set_span_in_context(self._span, Context()))
            self._span.set_attributes({**facts, "firsttoken.outcome": outcome})
            if outcome != "ok":
                self._span.set_attribute("error.type", outcome)
            if outcome in SERVER_FAULTS:
                self._span.set_status(Status(StatusCode.ERROR))
            self._span.end()
        except Exception:
            # This runs where each step's tokens are handed to all streams.
            log.exception("a trace could not be made")

    def _add(self, parts: Sequence[SpanSketch], parent: Context) -> None:
        for part in parts:
            span = self._tracer.start_span(part.name, parent, attributes=part.facts, start_time=self._ns(part.began))
            if part.inside:
                self._add(part.inside, set_span_in_context(span, Context()))
            span.end(self._ns(part.ended))

    def _ns(self, seconds: float) -> int:
        return self._zero + round(seconds * 1e9)
