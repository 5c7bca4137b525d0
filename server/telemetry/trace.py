"""One request's trace: moments noted while it runs, and the spans made of them once it is over.

Nothing here knows OpenTelemetry: :mod:`server.telemetry.otel` turns the spans into its own. While a request runs its trace costs
a few assignments a write; a request that is not sampled has none, and costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from server.config import TelemetryConfig
from server.engine import GenerationRequest, RequestFinished
from server.streams import Observer, Stream

Value: TypeAlias = "str | int | float | Sequence[str]"
Metadata: TypeAlias = "Sequence[tuple[str, str | bytes]]"


class SpanSketch(NamedTuple):
    """A span to be. Times are ``time.monotonic()`` seconds."""

    name: str
    began: float
    ended: float
    facts: Mapping[str, Value] = {}
    inside: Sequence[SpanSketch] = ()


class RequestTrace(Protocol):
    """The open span of one sampled request. Event loop only."""

    id: str
    """The trace's, 32 hexadecimal digits: what a log line says to be found by."""

    def end(self, parts: Sequence[SpanSketch], facts: Mapping[str, Value], outcome: str) -> None:
        """The request is over. Never raises, never blocks."""
        ...


class Tracer(Protocol):
    """Where traces go. Event loop only."""

    def begin(self, metadata: Metadata, arrival: float) -> RequestTrace | None:
        """Joined to the trace that the caller's metadata name, where they do; None where the request is not sampled."""
        ...

    def close(self, timeout: float) -> None:
        """Send what waits, for ``timeout`` seconds at most. Idempotent."""
        ...


class CountSpans(Protocol):
    def __call__(self, outcome: str, spans: int) -> None:
        """``outcome``: "sent", "dropped" for want of room, or "failed". Any thread."""
        ...


def make_tracer(config: TelemetryConfig, count: CountSpans, version: str) -> Tracer | None:
    """None where no collector is configured. Raises ValueError, a sentence for operators, where traces cannot be made."""
    if not config.otlp_endpoint:
        return None
    try:
        from server.telemetry.otel import OtlpTracer
    except ImportError as error:
        raise ValueError(
            "telemetry.otlp_endpoint is set, and OpenTelemetry is not installed: pip install 'firsttoken[otel]'"
        ) from error
    return OtlpTracer(config.otlp_endpoint, share=config.trace_share, version=version, count=count)


class TracedObserver:
    """A stream's observer that also notes its trace's moments, and passes everything on."""

    def __init__(self, trace: RequestTrace, observer: Observer) -> None:
        self.trace = trace
        self._observer = observer
        self.opened = time.monotonic()
        """When the engine got the request."""
        self.first_write: float | None = None
        self.writes = 0
        self.longest_gap = 0.0
        """Seconds per token."""

    def first_delta(self, request: GenerationRequest, seconds: float) -> None:
        self.first_write = request.arrival + seconds
        self.writes = 1
        self._observer.first_delta(request, seconds)

    def next_delta(self, request: GenerationRequest, seconds_per_token: float) -> None:
        self.writes += 1
        self.longest_gap = max(self.longest_gap, seconds_per_token)
        self._observer.next_delta(request, seconds_per_token)

    def settled(self, stream: Stream) -> None:
        self._observer.settled(stream)


def parts_of(seen: TracedObserver, stream: Stream, now: float) -> list[SpanSketch]:
    """The spans inside a request's, in the order in which they began."""
    request, end = stream.request, stream.finished
    parts = [SpanSketch("tokenize", request.arrival, seen.opened, {"firsttoken.prompt_tokens": len(request.prompt)})]
    if end is not None:
        parts.extend(_engine_parts(end, request.arrival, seen.opened))
    if seen.first_write is not None:
        facts = {"firsttoken.writes": seen.writes, "firsttoken.longest_gap_seconds": seen.longest_gap}
        parts.append(SpanSketch("deliver", seen.first_write, now, facts))
    return parts


def _engine_parts(end: RequestFinished, arrival: float, opened: float) -> Iterator[SpanSketch]:
    timings = end.timings
    over = arrival + timings.total
    planned = over if timings.queued is None else arrival + timings.queued
    yield SpanSketch("queue", opened, max(opened, planned))
    if timings.queued is None:
        return
    first = over if timings.first_token is None else arrival + timings.first_token
    chunks = [
        SpanSketch(
            "prefill.chunk",
            arrival + chunk.began,
            arrival + chunk.ended,
            {"firsttoken.tokens": chunk.tokens, "firsttoken.past": chunk.past},
        )
        for chunk in end.chunks
    ]
    yield SpanSketch("prefill", planned, first, {"firsttoken.cached_tokens": end.cached_tokens}, chunks)
    if timings.first_token is not None:
        yield SpanSketch("decode", first, over, {"firsttoken.preemptions": end.preemptions})


def facts_of(stream: Stream, *, priority: str) -> dict[str, Value]:
    """What the request's own span says. Lengths, names and outcomes: no text, no token, no credential."""
    request, end = stream.request, stream.finished
    facts: dict[str, Value] = {
        "firsttoken.request_id": stream.public_id,
        "firsttoken.class": priority,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.usage.input_tokens": len(request.prompt),
        "gen_ai.usage.output_tokens": sum(output.completion_tokens for output in stream.outputs),
        "gen_ai.response.finish_reasons": [output.ended.value for output in stream.outputs if output.ended],
    }
    if request.tenant:
        facts["firsttoken.tenant"] = request.tenant
    if end is not None and end.timings.first_token is not None:
        facts["firsttoken.first_token_seconds"] = end.timings.first_token
    return facts
