"""From the engine's steps to each request's reader: one hand-over a step, a mailbox per stream, one end per request.

The engine thread calls ``loop.call_soon_threadsafe(registry.deliver, events)`` once per step. Everything here runs on the event
loop, so nothing is locked. A mailbox is a plain list that the reader empties whole: a reader that is late gets all that waits
as one delta, and what can wait is bounded by the request's max_tokens.

**One end.** A sequence ends where its record says so, once: either the text stage finds a stop string in the tokens up to k, or
the engine ends it. Tokens are looked at in order and before the engine's word that they were the last, so a stop string that
is complete at token k always cuts there, whatever the engine did meanwhile; later tokens are counted as discarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from server.engine import (
    Engine,
    Event,
    FinishReason,
    GenerationRequest,
    PromptScored,
    RequestFinished,
    SequenceFinished,
    Timings,
    TokensEvent,
)
from server.errors import (
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    ReaderStalledError,
    RequestCancelledError,
    ServerError,
    UnavailableError,
)
from server.sequence_output import Delta, SequenceOutput


class Observer(Protocol):
    """Told what readers experience. Called on the event loop, often: must be cheap."""

    def first_delta(self, request: GenerationRequest, seconds: float) -> None:
        """``seconds`` from arrival until the first output was about to be written."""
        ...

    def next_delta(self, request: GenerationRequest, seconds_per_token: float) -> None:
        """A later output: the time since the one before, divided by its tokens."""
        ...

    def settled(self, stream: Stream) -> None:
        """A request is over on both sides: the engine freed it and its reader has left."""
        ...


class Unobserved:
    """The observer of streams that are no request of anybody's: the server's own warm-up."""

    def first_delta(self, request: GenerationRequest, seconds: float) -> None:
        pass

    def next_delta(self, request: GenerationRequest, seconds_per_token: float) -> None:
        pass

    def settled(self, stream: Stream) -> None:
        pass


class Stream:
    """One request's way from the engine to its reader. Event loop only.

    The reader calls :meth:`read` until it returns nothing, then looks at the outputs; whatever happens, it calls :meth:`leave`.
    """

    def __init__(
        self,
        request: GenerationRequest,
        outputs: list[SequenceOutput],
        engine: Engine,
        *,
        public_id: str,
        observer: Observer,
        clock: Callable[[], float],
    ) -> None:
        self.request = request
        self.public_id = public_id
        """What clients and logs call it; distinct across restarts."""
        self.outputs = outputs
        self.finished: RequestFinished | None = None
        """The engine's last word."""
        self.failure: ServerError | None = None
        """Why the reader gets a status instead of an end."""
        self.left = False
        self._engine = engine
        self.observer = observer
        self._clock = clock
        self._scored: list[PromptScored] = []
        self._mail: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._last_delta: float | None = None
        self._reader: asyncio.Task[object] | None = None
        self._writing_since: float | None = None

    # ------------------------------------------------------------------ the engine's side

    def put(self, event: Event) -> None:
        """One event of a step. O(1); the reader is woken only if it waits."""
        self._mail.append(event)
        if self.left:
            self._open_mail()
        else:
            self._wake()

    def fail(self, error: ServerError, reason: FinishReason) -> None:
        """End the request from our side, unless its output is complete already. The reader's :meth:`read` raises ``error``."""
        self._open_mail()
        if self.finished is None:
            if self.complete:
                # Only the engine's facts were still to come. The output stands.
                self.finished = self._without_facts(FinishReason.STOP_STRING)
            else:
                self._end(error, reason)
        self._wake()

    def abort(self, error: ServerError) -> None:
        """As :meth:`fail`, for a request that is cancelled; its engine is told, and still answers."""
        self.fail(error, FinishReason.CANCELLED)
        self._engine.cancel(self.request.id, FinishReason.CANCELLED)

    def abandon(self) -> None:
        """The engine is gone and will say nothing more."""
        if self.finished is None:
            self.finished = self._without_facts(FinishReason.ENGINE_FAILED)

    def _without_facts(self, reason: FinishReason) -> RequestFinished:
        total = self._clock() - self.request.arrival
        return RequestFinished(self.request.id, reason, len(self.request.prompt), 0, Timings(None, None, None, total))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ------------------------------------------------------------------ the reader's side

    @property
    def complete(self) -> bool:
        """Every sequence has ended well; a request of zero tokens has when the engine says so."""
        return all(output.ended is not None and output.ended.is_success for output in self.outputs)

    async def read(self) -> list[Delta]:
        """All output that waits, waiting for some; empty when the request is over and its outputs are complete.

        Raises the ServerError that ended the request otherwise. One reader at a time.
        """
        while True:
            self._open_mail()
            deltas = [delta for output in self.outputs if (delta := output.drain())]
            if deltas:
                self._observe(deltas)
                return deltas
            self._raise_failure()
            if self.finished is not None:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def take_scored(self) -> list[PromptScored]:
        """The prompt's log-probabilities that are new. All of them are there when the first output is."""
        scored, self._scored = self._scored, []
        return scored

    def attach(self, reader: asyncio.Task[object] | None) -> None:
        """The task that reads and writes; it is cancelled when it stalls in a write."""
        self._reader = reader

    def writing(self) -> None:
        """The reader starts to write to the client: from now on it may stall."""
        self._writing_since = self._clock()

    def written(self) -> None:
        self._writing_since = None

    def stalled(self, limit: float) -> bool:
        return self._writing_since is not None and self._clock() - self._writing_since > limit

    def interrupt_reader(self, error: ReaderStalledError) -> None:
        """Give up the seat of a reader that does not read, and cancel the task that writes to it."""
        self._writing_since = None
        self._end(error, FinishReason.CANCELLED)
        self._engine.cancel(self.request.id, FinishReason.CANCELLED)
        if self._reader is not None:
            self._reader.cancel()

    def leave(self, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """The reader is gone, for ``reason`` unless the request was over. Its seat is given up at once. Idempotent."""
        if self.left:
            return
        self.left = True
        self._writing_since = None
        self._reader = None
        self._open_mail()
        if self.finished is None:
            if not self.complete:
                self._end(departure(reason), reason)
            self._engine.cancel(self.request.id, reason)

    def _end(self, error: ServerError, reason: FinishReason) -> None:
        """The first failure stands; tokens that still come count as discarded."""
        self.failure = self.failure or error
        for output in self.outputs:
            output.abort(reason)

    def _open_mail(self) -> None:
        mail, self._mail = self._mail, []
        for event in mail:
            if isinstance(event, TokensEvent):
                output = self.outputs[event.sequence]
                if output.take(event.tokens, event.logprobs, event.top):
                    self._engine.stop(event.request, event.sequence, output.completion_tokens)
            elif isinstance(event, SequenceFinished):
                self.outputs[event.sequence].finish(event)
            elif isinstance(event, PromptScored):
                self._scored.append(event)
            else:
                self.finished = event

    def _raise_failure(self) -> None:
        if self.failure is None and self.finished is not None and not self.complete:
            self._end(self._failure_of(self.finished.reason), self.finished.reason)
        if self.failure is not None:
            raise self.failure

    def _failure_of(self, reason: FinishReason) -> ServerError:
        """What to tell a client whose request the engine ended without success."""
        request = self.request
        if reason is FinishReason.DEADLINE:
            if request.ttft_deadline is not None and self._last_delta is None:
                return DeadlineError(
                    f"ttft_deadline: no token within {request.ttft_deadline - request.arrival:g} s of arrival"
                )
            return DeadlineError("the call's deadline passed")
        if reason is FinishReason.OVERLOADED:
            return OverloadedError(
                "dropped from the queue: the server is overloaded", reason="dropped", retry_after=1.0
            )
        if reason is FinishReason.IMPOSSIBLE:
            return InvalidRequestError(
                "sampling", "its bans, biases and guide together leave no token that may come next"
            )
        if reason is FinishReason.ENGINE_FAILED:
            return UnavailableError("the engine failed while it ran this request", retry_after=1.0)
        return RequestCancelledError("the request was cancelled")

    def _observe(self, deltas: list[Delta]) -> None:
        now = self._clock()
        if self._last_delta is None:
            self.observer.first_delta(self.request, now - self.request.arrival)
        else:
            # Of several outputs the one with most: they run side by side.
            tokens = len(deltas[0].tokens) if len(deltas) == 1 else max(len(delta.tokens) for delta in deltas)
            if tokens:
                self.observer.next_delta(self.request, (now - self._last_delta) / tokens)
        self._last_delta = now


def departure(reason: FinishReason) -> ServerError:
    """Why the reader of a request left before its end."""
    if reason is FinishReason.DEADLINE:
        return DeadlineError("the call's deadline passed")
    return RequestCancelledError("the client is gone")
