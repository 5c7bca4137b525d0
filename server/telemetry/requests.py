"""What one request did, as metrics and as one line of log, when it is over."""

from __future__ import annotations

import time
from pathlib import Path

import structlog

from server.config import TelemetryConfig
from server.engine import FinishReason, GenerationRequest, PriorityClass
from server.errors import (
    DeadlineError,
    DuplicateRequestError,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    ReaderStalledError,
    RequestCancelledError,
    ServerError,
    UnavailableError,
    UnknownModelError,
)
from server.streams import Stream
from server.telemetry.metrics import CLASSES, Metrics
from server.telemetry.patience import Patience
from server.telemetry.recording import Recorder
from server.telemetry.trace import Metadata, RequestTrace, TracedObserver, Tracer, facts_of, make_tracer, parts_of

log = structlog.get_logger("firsttoken.request")

# Subclasses before their base: the first match names the outcome.
_OUTCOMES: tuple[tuple[type[ServerError], str], ...] = (
    (InvalidRequestError, "invalid"),
    (UnknownModelError, "invalid"),
    (DuplicateRequestError, "invalid"),
    (PermissionDeniedError, "denied"),
    (ReaderStalledError, "stalled"),
    (RequestCancelledError, "cancelled"),
    (DeadlineError, "deadline"),
    (OverloadedError, "overloaded"),
    (UnavailableError, "unavailable"),
)
OUTCOMES = ("ok", "error", *dict.fromkeys(name for _, name in _OUTCOMES))


def outcome_of(error: BaseException | None) -> str:
    """The label of a request that ended by ``error``: a client's cancel is never counted as a success."""
    if error is None:
        return "ok"
    return next((name for kind, name in _OUTCOMES if isinstance(error, kind)), "error")


class RequestTelemetry:
    """Implements :class:`server.streams.Observer`. Labels are resolved once, so that a write costs one observation."""

    def __init__(self, metrics: Metrics, config: TelemetryConfig) -> None:
        self._metrics = metrics
        self._config = config
        self._log_requests = config.log_requests
        self._recorder: Recorder | None = None
        self._tracer: Tracer | None = None
        self.patience = Patience(default=config.client_timeout, floor=config.client_timeout_floor)
        metrics.registry.register(self.patience)
        self._first = [metrics.first_token.labels(name) for name in CLASSES]
        self._gap = [metrics.gap.labels(name) for name in CLASSES]
        self._queue = [metrics.queue.labels(name) for name in CLASSES]
        self._total = [metrics.total.labels(name) for name in CLASSES]
        self._tokens = [metrics.completion_tokens.labels(name) for name in CLASSES]
        for name in CLASSES:
            for outcome in OUTCOMES:
                metrics.requests.labels(name, outcome)

    def open(self, version: str) -> None:
        """Before the first request. Raises ValueError, a sentence for operators, where traces are wanted and cannot be made."""
        self._tracer = make_tracer(self._config, self._count_spans, version)

    def record(self, block_size: int) -> None:
        """Record the traffic from now on, where that is configured. Raises OSError."""
        if self._config.recording:
            self._recorder = Recorder(Path(self._config.recording), block_size=block_size, began=time.monotonic())

    def close(self, timeout: float) -> None:
        """End the recording, and send the traces that wait; ``timeout`` seconds at most in all."""
        until = time.monotonic() + timeout
        if self._recorder is not None:
            self._recorder.close(timeout)
        if self._tracer is not None:
            self._tracer.close(max(0.0, until - time.monotonic()))

    def trace(self, metadata: Metadata, arrival: float) -> RequestTrace | None:
        """The trace of a request that has just come; None where it has none."""
        return None if self._tracer is None else self._tracer.begin(metadata, arrival)

    def traced(self, trace: RequestTrace) -> TracedObserver:
        """Who observes the stream of a traced request in this one's place."""
        return TracedObserver(trace, self)

    def first_delta(self, request: GenerationRequest, seconds: float) -> None:
        self._first[request.priority].observe(seconds)

    def next_delta(self, request: GenerationRequest, seconds_per_token: float) -> None:
        self._gap[request.priority].observe(seconds_per_token)

    def refused(
        self,
        error: BaseException,
        priority: PriorityClass = PriorityClass.INTERACTIVE,
        *,
        tenant: str = "",
        trace: RequestTrace | None = None,
        time_left: float | None = None,
    ) -> None:
        """A request that never reached the engine. ``time_left``: seconds until its deadline, where it had one."""
        self._count(priority, error)
        if time_left is not None and isinstance(error, OverloadedError) and error.reason == "predicted_deadline":
            self.patience.cut(priority, time_left)
        facts = {"request": name} if (name := getattr(error, "request_id", "")) else {}
        facts |= {"tenant": tenant} if tenant else {}
        facts |= _cause(error)
        if trace is not None:
            named = {f"firsttoken.{'request_id' if key == 'request' else key}": value for key, value in facts.items()}
            trace.end((), {"firsttoken.class": CLASSES[priority], **named}, outcome_of(error))
            facts["trace"] = trace.id
        if self._log_requests:
            log.info("request", outcome=outcome_of(error), priority=CLASSES[priority], **facts)

    def settled(self, stream: Stream) -> None:
        """Called once for each request that reached the engine."""
        request, end = stream.request, stream.finished
        self._count(request.priority, stream.failure)
        completion_tokens = sum(output.completion_tokens for output in stream.outputs)
        self._tokens[request.priority].inc(completion_tokens)
        if self._recorder is not None:
            self._recorder.put(request, completion_tokens)
        if end is not None:
            if end.timings.queued is not None:
                self._queue[request.priority].observe(end.timings.queued)
            if stream.failure is None:
                self._total[request.priority].observe(end.timings.total)
                self.patience.finished(request.priority, end.timings.total)
            elif isinstance(stream.failure, DeadlineError):
                self.patience.cut(request.priority, end.timings.total)
        trace = _end_trace(stream)
        if self._log_requests:
            self._log(stream, trace)

    def _count_spans(self, outcome: str, spans: int) -> None:
        self._metrics.trace_spans.labels(outcome).inc(spans)

    def _count(self, priority: PriorityClass, error: BaseException | None) -> None:
        self._metrics.requests.labels(CLASSES[priority], outcome_of(error)).inc()
        if isinstance(error, OverloadedError):
            self._metrics.rejections.labels(error.reason).inc()

    def _log(self, stream: Stream, trace: dict[str, str]) -> None:
        # Prompts and outputs never get here: what people write to a model is theirs.
        request, end = stream.request, stream.finished
        reason = next((output.ended for output in stream.outputs if output.ended), FinishReason.CANCELLED)
        timings = end.timings if end is not None else None
        log.info(
            "request",
            request=stream.public_id,
            outcome=outcome_of(stream.failure),
            priority=CLASSES[request.priority],
            tenant=request.tenant or None,
            reason=reason.value,
            prompt_tokens=len(request.prompt),
            cached_tokens=end.cached_tokens if end is not None else 0,
            completion_tokens=sum(output.completion_tokens for output in stream.outputs),
            discarded_tokens=sum(output.discarded_tokens for output in stream.outputs),
            preemptions=end.preemptions if end is not None else 0,
            queued=_rounded(timings.queued if timings else None),
            first_token=_rounded(timings.first_token if timings else None),
            total=_rounded(timings.total if timings else None),
            **trace,
        )


def _end_trace(stream: Stream) -> dict[str, str]:
    """End the trace of a request that is over, where it has one; what the log says of it."""
    seen = stream.observer
    if not isinstance(seen, TracedObserver):
        return {}
    facts = facts_of(stream, priority=CLASSES[stream.request.priority])
    seen.trace.end(parts_of(seen, stream, time.monotonic()), facts, outcome_of(stream.failure))
    return {"trace": seen.trace.id}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def _cause(error: BaseException) -> dict[str, str]:
    """Which rule a refused request broke. Never the message: it can quote what the client sent."""
    if isinstance(error, InvalidRequestError):
        return {"field": error.field}
    return {"limit": error.reason} if isinstance(error, OverloadedError) else {}
