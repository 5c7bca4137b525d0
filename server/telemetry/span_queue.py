"""From ended spans to a collector: a bounded queue and one thread. A collector that is slow or dead costs spans, and nothing else.

The SDK's own batch processor would do but for three things: it does not tell how many spans it dropped, it logs on the thread that
ends a span, and closing it may take half a minute.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from server.telemetry.trace import CountSpans

log = structlog.get_logger(__name__)

MAX_WAITING = 4096
"""Spans, of about a kilobyte each."""
BATCH = 256
LINGER = 1.0
"""Seconds that a span waits for others to go with it."""


class SpanQueue(SpanProcessor):
    """``on_end`` never blocks and never raises; everything else is the thread's."""

    def __init__(self, exporter: SpanExporter, count: CountSpans) -> None:
        self._exporter = exporter
        self._count = count
        self._waiting: queue.Queue[ReadableSpan] = queue.Queue(MAX_WAITING)
        self._closing = threading.Event()
        self._reached: bool | None = None
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        try:
            self._waiting.put_nowait(span)
        except queue.Full:
            self._count("dropped", 1)

    def close(self, timeout: float) -> None:
        """Send what waits, for ``timeout`` seconds at most; the thread ends then or soon after. Idempotent."""
        self._closing.set()
        self._thread.join(timeout)
        self._exporter.shutdown()  # interrupts an export that still tries

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002 - the SDK's signature
        return True  # nobody calls it: close() sends what waits

    def _run(self) -> None:
        while batch := self._gather():
            self._send(batch)

    def _gather(self) -> list[ReadableSpan]:
        """The next batch; empty when the queue is closed and nothing waits any more."""
        while True:
            if self._waiting.qsize() < BATCH:
                self._closing.wait(LINGER)
            batch = [self._waiting.get_nowait() for _ in range(min(BATCH, self._waiting.qsize()))]
            if batch or self._closing.is_set():
                return batch

    def _send(self, batch: list[ReadableSpan]) -> None:
        try:
            sent = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # noqa: BLE001 - an exporter's fault must not end the thread
            log.warning("a batch of spans could not be sent", why=type(error).__name__)
            sent = False
        self._count("sent" if sent else "failed", len(batch))
        if sent is not self._reached:
            self._reached = sent
            say: Callable[..., None] = log.info if sent else log.warning
            say("traces reach the collector" if sent else "traces do not reach the collector; serving goes on")
