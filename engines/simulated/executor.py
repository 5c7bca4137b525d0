"""The simulated request executor: the semantics of TensorRT-LLM's C++ executor, without a GPU.

In real time it runs on a thread of its own. In virtual time there is none: await_responses() itself drives the iterations, on the
caller's thread, so that a run is the same every time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from engines.contract import (
    Capabilities,
    EngineDeadError,
    ExecutorLimits,
    ExecutorRequest,
    ExecutorResponse,
    ExecutorStats,
    PlanError,
)
from engines.executor_checks import check_request, refuse_unoffered
from engines.simulated.clock import Clock, RealClock, VirtualClock
from engines.simulated.cost import CostModel
from engines.simulated.draws import Drawer, TokenDrawer
from engines.simulated.faults import Faults
from engines.simulated.inflight import InflightBatch, Iteration
from engines.simulated.language import Language
from engines.simulated.reuse import Journal

CAPABILITIES = Capabilities(
    batch_invariant=True,
    preemption=False,
    score=False,
    masks=False,
    adapters=False,
    salts=True,
    block_io=False,
    immediate_cancel=False,
)


class SimulatedExecutor:
    """Implements engines.contract.RequestExecutor. Its tokens are those of a simulated step runner with the same language."""

    _running: tuple[Iteration, float] | None = None
    """The iteration under way and when it ends."""
    _dead: str | None = None
    _thread: threading.Thread | None = None

    def __init__(
        self,
        language: Language,
        *,
        blocks: int,
        block_size: int = 32,
        max_batch_size: int = 64,
        max_num_tokens: int = 2048,
        max_context: int = 8192,
        cost: CostModel | None = None,
        clock: Clock | None = None,
        seed: int = 0,
        drawer: Drawer | None = None,
        faults: Faults | None = None,
        cancel_lag: int = 1,
        journal: Journal | None = None,
    ) -> None:
        """``journal``: told of each block that becomes reusable or no longer is, on the thread that runs the iterations."""
        self._limits = _checked(
            ExecutorLimits(language.vocab_size, block_size, blocks, max_batch_size, max_num_tokens, max_context)
        )
        drawer = drawer or TokenDrawer(language)
        self._capabilities = msgspec.structs.replace(CAPABILITIES, masks=drawer.guides)
        self.faults = faults or Faults()
        self.clock: Clock = clock or RealClock()
        self._batch = InflightBatch(
            self._limits,
            drawer,
            cost=cost or CostModel(),
            faults=self.faults,
            seed=seed,
            cancel_lag=cancel_lag,
            journal=journal,
        )
        self._lock = threading.Condition()
        self._responses: list[ExecutorResponse] = []
        self._closing = threading.Event()
        if not isinstance(self.clock, VirtualClock):
            self._thread = threading.Thread(target=self._loop, name="simulated-executor", daemon=True)
            self._thread.start()

    @property
    def limits(self) -> ExecutorLimits:
        return self._limits

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    # ------------------------------------------------------------------ the contract; any thread

    def enqueue(self, requests: Sequence[ExecutorRequest]) -> None:
        with self._lock:
            self._require_alive()
            seen: set[int] = set()
            for request in requests:
                check_request(request, self._limits)
                refuse_unoffered(request)
                if request.request in seen or request.request in self._batch:
                    raise PlanError(f"request {request.request}: its id is in use")
                seen.add(request.request)
            now = self.clock.now()
            for request in requests:
                self._batch.add(request, now)
            self._lock.notify_all()

    def cancel(self, request: int) -> None:
        with self._lock:
            self._require_alive()
            self._batch.cancel(request)
            self._lock.notify_all()

    def await_responses(self, timeout: float) -> list[ExecutorResponse]:
        with self._lock:
            if self._thread is None:
                self._drive(self.clock.now() + timeout)
            elif not self._responses:
                self._lock.wait_for(lambda: self._responses or self._dead is not None, timeout)
            responses, self._responses = self._responses, []
            if not responses:
                self._require_alive()
            return responses

    def stats(self) -> ExecutorStats:
        with self._lock:
            return self._batch.stats()

    def check_integrity(self) -> None:
        """Raises EngineError where the executor's books do not balance."""
        with self._lock:
            self._batch.check_integrity()

    def close(self) -> None:
        """Idempotent. Wakes await_responses(); waits for the executor's own thread."""
        self._closing.set()
        with self._lock:
            self._dead = self._dead or "closed"
            self._lock.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # ------------------------------------------------------------------ iterations, with the lock held

    def _turn(self) -> bool:
        """Start the next iteration. False where there is nothing to run."""
        self._responses += self._batch.border(self.clock.now())
        iteration = self._batch.begin()
        if iteration is not None:
            self._running = (iteration, self.clock.now() + iteration.seconds)
        return iteration is not None

    def _complete(self, iteration: Iteration) -> None:
        if self.faults.kills(iteration.ordinal):
            self._dead = self._dead or "killed by a fault"
            return
        self._responses += self._batch.complete(iteration)
        self._running = None

    def _drive(self, deadline: float) -> None:
        """Virtual time: run iterations until there is a response or the deadline has come."""
        while not self._responses and self._dead is None:
            if self._running is None and not self._turn():
                if not self._responses:
                    self.clock.wait(deadline, self._closing)
                return
            if self._running is None or self._responses:
                return
            iteration, ends_at = self._running
            if ends_at > deadline or self.faults.hangs(iteration.ordinal):
                self.clock.wait(deadline, self._closing)
                return
            self.clock.wait(ends_at, self._closing)
            self._complete(iteration)

    # ------------------------------------------------------------------ the executor's own thread, real time

    def _loop(self) -> None:
        while not self._closing.is_set():
            with self._lock:
                busy = self._turn()
                if self._responses:
                    self._lock.notify_all()
                if not busy:
                    self._lock.wait_for(lambda: not self._batch.idle or self._closing.is_set())
                    continue
                running = self._running
            if running is None or not self._run_out(*running):
                return

    def _run_out(self, iteration: Iteration, ends_at: float) -> bool:
        """Let an iteration's time pass, then complete it. False where the executor is over."""
        if self.faults.hangs(iteration.ordinal):
            self._closing.wait()
        if self.clock.wait(ends_at, self._closing):
            return False
        with self._lock:
            self._complete(iteration)
            self._lock.notify_all()
            return self._dead is None

    def _require_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(f"simulated executor: {self._dead}")


def _checked(limits: ExecutorLimits) -> ExecutorLimits:
    if limits.max_num_tokens < limits.max_batch_size:
        raise ValueError(
            f"max_num_tokens: must be at least max_batch_size ({limits.max_batch_size}), got {limits.max_num_tokens}"
        )
    return limits
