"""Drives the C++ executor of the leader rank behind :class:`engines.contract.RequestExecutor`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from engines.contract import (
    Capabilities,
    EngineDeadError,
    EngineError,
    ExecutorLimits,
    ExecutorRequest,
    ExecutorResponse,
    ExecutorStats,
    PlanError,
)
from engines.executor_checks import check_request
from engines.trtllm.cache_events import CacheEvents
from engines.trtllm.causes import explain
from engines.trtllm.native import Bindings, NativeExecutor
from engines.trtllm.requests import GUIDES, check_offered, to_request
from engines.trtllm.responses import OpenRequest
from engines.trtllm.statistics import HeldCalls, IterationFigures

T = TypeVar("T")

CAPABILITIES = Capabilities(
    batch_invariant=False,
    preemption=False,
    score=False,
    masks=True,
    adapters=False,
    salts=True,
    block_io=False,
    immediate_cancel=False,
    held_back=1,
    guides=GUIDES,
    top_logprobs=0,
    retention=True,
)
SLICE = 0.25
"""Seconds of one wait inside the library: how long closing waits for the thread that awaits."""
STALL = 60.0
"""Seconds without a response or an iteration, while requests are inside, after which a rank hangs."""
STATISTICS_AGE = 0.1
"""Seconds for which statistics are good: asking the library holds the interpreter's lock."""


class TrtllmExecutor:
    """The executor of the leader rank. One thread awaits; any thread enqueues and cancels.

    Calls that hold the interpreter's lock (all but await_responses and shutdown) are few and counted: one to enqueue a whole
    batch, one for each cancel, one for statistics a few times a second.
    """

    def __init__(
        self,
        bindings: Bindings,
        native: NativeExecutor,
        limits: ExecutorLimits,
        *,
        statistics_age: float = STATISTICS_AGE,
        stall_after: float = STALL,
    ) -> None:
        """``statistics_age``: seconds for which statistics are good. ``stall_after``: seconds without progress that mean a hang."""
        self._bindings = bindings
        self._native = native
        self._limits = limits
        self._statistics_age = statistics_age
        self._stall_after = stall_after
        self._progress_at = time.monotonic()
        self._lock = threading.Lock()
        self._awaiting = threading.Lock()
        self._asking = threading.Lock()
        """Whoever asks for statistics and events applies them before another asks: they come in order, once."""
        self._open: dict[int, OpenRequest] = {}
        self._held = HeldCalls()
        self._figures = IterationFigures(max_blocks=limits.block_count, block_size=limits.block_size)
        self._figures_at = float("-inf")
        self._events = CacheEvents(bindings)
        self._event_source = native.get_kv_cache_event_manager()
        """None where the executor buffers none."""
        self._dead: str | None = None
        self._closed = False

    @property
    def limits(self) -> ExecutorLimits:
        return self._limits

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(CAPABILITIES, adapters=bool(self._limits.adapters))

    # ------------------------------------------------------------------ the contract; any thread

    def enqueue(self, requests: Sequence[ExecutorRequest]) -> None:
        with self._lock:
            self._require_alive()
            self._check(requests)
            translated = [to_request(self._bindings, request, self._limits.vocab_size) for request in requests]
            if not self._open:
                self._progress_at = time.monotonic()
            for request in requests:
                self._open[request.request] = OpenRequest(request, self._limits.block_size)
        # Outside the lock: a response may come before the call has returned its ids, and must not wait for them.
        try:
            ids = self._held.run(lambda: self._native.enqueue_requests(translated))
        except Exception as error:
            raise self._not_taken(requests, error) from error
        with self._lock:
            late = [self._learn(request.request, number) for request, number in zip(requests, ids, strict=True)]
        for number in late:
            if number is not None:
                self._cancel_native(number)

    def cancel(self, request: int) -> None:
        with self._lock:
            self._require_alive()
            opened = self._open.get(request)
            if opened is None or opened.cancelled:
                return
            opened.cancelled = True
            number = opened.library_id
        if number is not None:
            self._cancel_native(number)

    def await_responses(self, timeout: float) -> list[ExecutorResponse]:
        with self._awaiting:
            end = time.monotonic() + timeout
            while True:
                with self._lock:
                    self._require_alive()
                left = end - time.monotonic()
                responses = self._await(min(max(left, 0.0), SLICE))
                self._require_progress(responses)
                if responses or left <= SLICE:
                    with self._lock:
                        return self._translate(responses)

    def stats(self) -> ExecutorStats:
        now = time.monotonic()
        if self._dead is None and now - self._figures_at >= self._statistics_age:
            self._refresh(now)
        with self._lock:
            figures, live = self._figures, len(self._open)
            queued = min(figures.queued, live)
            # Nothing runs between the last answer and the next request, so no iteration would say so.
            used = figures.used_blocks if live else 0
            return ExecutorStats(
                active=live - queued,
                queued=queued,
                used_blocks=used,
                max_blocks=figures.max_blocks,
                reused_blocks=figures.reused_blocks,
                missed_blocks=figures.missed_blocks,
                iterations=figures.iterations,
                calls=self._held.count,
                call_seconds=self._held.seconds,
                # Some of the reusable ones are held by sequences, and no event says which.
                cached_blocks=max(0, min(self._events.reusable, figures.max_blocks - used)),
                evicted_blocks=self._events.evicted,
            )

    def check_integrity(self) -> None:
        """Raises EngineError where the books do not balance."""
        with self._lock:
            for number, opened in self._open.items():
                if number != opened.request.request or not opened.open <= set(range(opened.request.n)):
                    raise EngineError(f"request {number}: booked as {opened}")

    def close(self) -> None:
        """Idempotent. Cancels what runs, wakes who awaits, ends every rank: the others wait inside their own shutdown()."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            died = self._dead is not None
            self._dead = self._dead or "closed"
            numbers = [one.library_id for one in self._open.values() if one.library_id is not None]
            self._open.clear()
        if not died:
            for number in numbers:
                self._quietly(lambda number=number: self._native.cancel_request(number))  # type: ignore[misc]
        with self._awaiting:
            self._quietly(self._native.shutdown)

    # ------------------------------------------------------------------ inside

    def _check(self, requests: Sequence[ExecutorRequest]) -> None:
        seen: set[int] = set()
        for request in requests:
            check_request(request, self._limits)
            check_offered(request)
            if request.request in seen or request.request in self._open:
                raise PlanError(f"request {request.request}: its id is in use")
            seen.add(request.request)

    def _not_taken(self, requests: Sequence[ExecutorRequest], error: Exception) -> EngineError:
        """No request may end the engine: while it still takes others, only these are refused."""
        with self._lock:
            for request in requests:
                self._open.pop(request.request, None)
        why = explain(str(error))
        if self._call(self._native.can_enqueue_requests):
            return PlanError(
                f"request {requests[0].request}: TensorRT-LLM refuses it, or one of {len(requests)}: {why}"
            )
        self._dead = self._dead or why
        return EngineDeadError(f"TensorRT-LLM executor: {self._dead}")

    def _learn(self, request: int, number: int) -> int | None:
        """The library's id of a request. Returned where somebody wished for its end in the meantime."""
        opened = self._open.get(request)
        if opened is None:
            return None
        opened.library_id = number
        return number if opened.cancelled else None

    def _translate(self, responses: Iterable[Any]) -> list[ExecutorResponse]:
        translated: list[ExecutorResponse] = []
        for response in responses:
            opened = self._open.get(int(response.client_id))
            if opened is None:
                continue  # a word after the final one
            said = opened.translate(response)
            if said[-1].final:
                del self._open[opened.request.request]
            translated += said
        return translated

    def _refresh(self, now: float) -> bool:
        """Ask for statistics and events. True where iterations have run since the last time."""
        self._figures_at = now
        source = self._event_source
        with self._asking:
            iterations = self._call(self._native.get_latest_iteration_stats)
            self._figures.take(iterations)
            if source is not None:
                # 0: what is there. Without a number the library would wait for an event, and hold the interpreter's lock meanwhile.
                self._events.take(self._call(lambda: source.get_latest_events(0.0)))
        if iterations:
            self._progress_at = now
        return bool(iterations)

    def _require_progress(self, responses: Sequence[Any]) -> None:
        """case_K2: the library's wait times out in good health while a collective operation hangs on another rank.

        Raises EngineDeadError. A long prompt gives no response for long, yet iterations.
        """
        now = time.monotonic()
        if responses:
            self._progress_at = now
        elif self._open and now - self._progress_at > self._stall_after and not self._refresh(now):
            self._dead = self._dead or (
                f"no response and no iteration for {self._stall_after:g} s with {len(self._open)} requests inside: a rank hangs, often "
                "in NCCL"
            )
            self._require_alive()

    def _await(self, seconds: float) -> list[Any]:
        """Holds no lock of ours, and inside the library not the interpreter's."""
        return self._guarded(lambda: self._native.await_responses(timedelta(seconds=seconds)))

    def _cancel_native(self, number: int) -> None:
        self._call(lambda: self._native.cancel_request(number))

    def _call(self, call: Callable[[], T]) -> T:
        """A call that holds the interpreter's lock."""
        result: T = self._held.run(lambda: self._guarded(call))
        return result

    def _guarded(self, call: Callable[[], T]) -> T:
        """Whatever the library throws here means that it cannot go on: what requests do wrong comes as responses."""
        try:
            return call()
        except Exception as error:
            self._dead = self._dead or explain(str(error))
            raise EngineDeadError(f"TensorRT-LLM executor: {self._dead}") from error

    def _quietly(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - it is going away; what it says on its way cannot change that
            self._dead = self._dead or explain(str(error))

    def _require_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(f"TensorRT-LLM executor: {self._dead}")
