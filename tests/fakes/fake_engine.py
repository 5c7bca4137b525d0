"""An engine without a model: scripted tokens from a thread of its own, through the same facade as the real ones."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from engines.contract import Capabilities
from server.engine import (
    Deliver,
    EngineInfo,
    EngineStats,
    Event,
    FinishReason,
    GenerationRequest,
    RequestFinished,
    SequenceFinished,
    Timings,
    TokensEvent,
)
from server.errors import OverloadedError, UnavailableError
from server.step_record import StepRecord

VOCAB, END = 259, 256
"""The simulated tokenizer's: one id a byte, then three special tokens."""


@dataclass
class _Job:
    request: GenerationRequest
    sent: int = 0
    cancelled: FinishReason | None = None
    stop_after: int | None = None
    seen_steps: int = 0
    started: float | None = None
    first: float | None = None


@dataclass
class FakeEngine:
    """Each step gives each request the next byte of ``output`` (repeated for ever, or ended by END where ``ends``)."""

    output: bytes = b"the quick brown fox jumps over the lazy dog. "
    ends: bool = False
    step_seconds: float = 0.001
    silent_steps: int = 0
    """Steps before the first token: a long prefill."""
    hold_at: int | None = None
    """Tokens after which every request stands still, until this is None again."""
    max_waiting: int = 1000
    least_wait: float | None = None
    """Seconds until the shortest prompt's first token, as forecast; None = no forecast."""
    seats: int = 64
    max_context: int = 512
    live: dict[int, _Job] = field(default_factory=dict)
    submitted: list[GenerationRequest] = field(default_factory=list)
    cancels: list[tuple[int, FinishReason]] = field(default_factory=list)
    stops: list[tuple[int, int, int]] = field(default_factory=list)
    kept: bool | None = None
    """What close() was told; None before."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._dead = False
        self._stuck_since: float | None = None
        self._steps = self._generated = self._discarded = self._prompt = 0
        self._thread: threading.Thread | None = None

    @property
    def info(self) -> EngineInfo:
        capabilities = Capabilities(
            batch_invariant=True,
            preemption=True,
            score=False,
            masks=False,
            adapters=False,
            salts=True,
            block_io=True,
            immediate_cancel=True,
        )
        return EngineInfo(
            kind="simulated",
            model="fake",
            fingerprint="f" * 8,
            vocab_size=VOCAB,
            end_ids=(END,),
            max_context=self.max_context,
            block_size=16,
            block_count=64,
            bytes_per_block=1024,
            max_sequences=self.seats,
            max_step_tokens=512,
            capabilities=capabilities,
        )

    def start(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def require_room(self, tenant: str) -> None:
        with self._lock:
            self._require_room()

    def _require_room(self) -> None:
        if len(self.live) >= self.max_waiting:
            raise OverloadedError("max_waiting_requests: full", reason="waiting_requests", retry_after=2.5)

    def require_time(self, shortest: GenerationRequest) -> None:
        if self.least_wait is not None and shortest.ttft_deadline is not None:
            late = shortest.arrival + self.least_wait - shortest.ttft_deadline
            if late > 0:
                raise OverloadedError("too late", reason="predicted_ttft_deadline", retry_after=late)

    def submit(self, request: GenerationRequest) -> None:
        with self._lock:
            if self._dead or self._closing.is_set():
                raise UnavailableError("the engine is closing")
            self._require_room()
            self.submitted.append(request)
            self.live[request.id] = _Job(request)

    def cancel(self, request: int, reason: FinishReason = FinishReason.CANCELLED) -> None:
        with self._lock:
            self.cancels.append((request, reason))
            if request in self.live:
                self.live[request].cancelled = reason

    def stop(self, request: int, sequence: int, after_token: int) -> None:
        with self._lock:
            self.stops.append((request, sequence, after_token))
            if request in self.live:
                self.live[request].stop_after = after_token

    def stats(self) -> EngineStats:
        with self._lock:
            running = min(self.seats, len(self.live))
            stuck = None if self._stuck_since is None else time.monotonic() - self._stuck_since
            return EngineStats(
                alive=not self._dead,
                last_step_age=0.001,
                step_running_for=stuck,
                waiting_by_class=(len(self.live) - running, 0, 0),
                waiting_tokens=0,
                running=running,
                blocks_free=64 - running,
                blocks_cached=0,
                blocks_in_use=running,
                blocks_quarantined=0,
                steps=self._steps,
                prompt_tokens=self._prompt,
                cached_tokens=0,
                computed_tokens=self._prompt + self._generated,
                generated_tokens=self._generated,
                discarded_tokens=self._discarded,
                preemptions=0,
                plan_seconds=0.001 * self._steps,
                engine_seconds=0.001 * self._steps,
                sample_seconds=0.001 * self._steps,
                deliver_seconds=0.001 * self._steps,
                busy=0.5 if self._steps else 0.0,
                predicted_seconds=0.001 * self._steps,
                step_cost_error=0.1,
            )

    @property
    def prefixes(self) -> None:
        """It has no cache."""

    def recent_steps(self) -> list[StepRecord]:
        return []

    def close(self, timeout: float, *, keep: bool = False) -> None:
        self.kept = keep
        self._closing.set()
        if self._thread is not None:
            self._thread.join(timeout)

    # ------------------------------------------------------------------ what tests do to it

    def die(self) -> None:
        """Without a last word: the worst way."""
        self._dead = True

    def hang(self) -> None:
        """In the middle of a step."""
        self._stuck_since = time.monotonic() - 3600

    # ------------------------------------------------------------------ the engine thread

    def _run(self) -> None:
        while not (self._closing.is_set() or self._dead):
            time.sleep(self.step_seconds)
            if self._stuck_since is None:
                with self._lock:
                    events = [event for job in list(self.live.values()) for event in self._step(job)]
                    self._steps += bool(events)
                if events:
                    self._deliver(events)

    def _step(self, job: _Job) -> list[Event]:
        request = job.request
        if job.cancelled or job.stop_after is not None:
            return self._end(job, job.cancelled or FinishReason.STOP_STRING)
        if job.started is None:
            job.started = time.monotonic()
            self._prompt += len(request.prompt)
        job.seen_steps += 1
        if job.seen_steps <= self.silent_steps or (self.hold_at is not None and job.sent >= self.hold_at):
            return []
        if request.max_tokens == 0:
            return self._end(job, FinishReason.LENGTH)
        over = self.ends and job.sent >= len(self.output)
        token = END if over else self.output[job.sent % len(self.output)]
        job.sent += 1
        self._generated += 1
        job.first = job.first or time.monotonic()
        events: list[Event] = [
            TokensEvent(request.id, index, (token,), first=job.sent == 1) for index in range(request.n)
        ]
        if token in request.end_ids:
            return events + self._end(job, FinishReason.END)
        if token in request.stop_ids:
            return events + self._end(job, FinishReason.STOP_TOKEN)
        return events + (self._end(job, FinishReason.LENGTH) if job.sent >= request.max_tokens else [])

    def _end(self, job: _Job, reason: FinishReason) -> list[Event]:
        request, now = job.request, time.monotonic()
        del self.live[request.id]
        completion = job.sent if job.stop_after is None else min(job.sent, job.stop_after)
        self._discarded += job.sent - completion
        queued = None if job.started is None else job.started - request.arrival
        first = None if job.first is None else job.first - request.arrival
        prefill = None if first is None or queued is None else first - queued
        timings = Timings(queued, prefill, first, now - request.arrival)
        return [
            *(
                SequenceFinished(request.id, index, reason, completion, job.sent - completion)
                for index in range(request.n)
            ),
            RequestFinished(request.id, reason, len(request.prompt), 0, timings),
        ]
