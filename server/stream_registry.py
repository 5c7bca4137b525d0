"""Every open stream, and the one place where the engine's steps reach them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import structlog

from server.engine import Engine, Event, FinishReason, GenerationRequest
from server.errors import DuplicateRequestError, ReaderStalledError, RequestCancelledError, ServerError
from server.sequence_output import SequenceOutput, TextStage
from server.streams import Observer, Stream

log = structlog.get_logger(__name__)


Names: TypeAlias = dict[tuple[str, str], Stream]
"""Streams by tenant and public id."""


class StreamRegistry:
    """Every request that the engine knows or somebody reads. Event loop only."""

    def __init__(
        self,
        engine: Engine,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
        *,
        names: Names | None = None,
    ) -> None:
        """``names`` is shared by the registries of one server: an id is alive once, whichever engine runs its request."""
        self._engine = engine
        self._observer = observer
        self._clock = clock
        self._streams: dict[int, Stream] = {}
        self._names: Names = {} if names is None else names
        """By tenant and public id, those whose reader is there and whose end is not. No tenant learns of another's ids."""
        self._ids = itertools.count(1)
        self._epoch = secrets.token_hex(4)
        self._idle = asyncio.Event()
        self._idle.set()
        self._readers = 0
        self._expected = 0

    def new_id(self) -> int:
        """A handle for a request; never given twice."""
        return next(self._ids)

    @property
    def readers(self) -> int:
        """Streams open on the wire."""
        return self._readers

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._streams.values()))

    def __len__(self) -> int:
        return len(self._streams)

    def require_room(self, tenant: str) -> None:
        """See Engine.require_room."""
        self._engine.require_room(tenant)

    def require_time(self, shortest: GenerationRequest) -> None:
        """See Engine.require_time."""
        self._engine.require_time(shortest)

    def open(
        self,
        request: GenerationRequest,
        texts: Sequence[TextStage],
        observer: Observer | None = None,
        *,
        public_id: str = "",
    ) -> Stream:
        """Submit a request and open its stream. Raises DuplicateRequestError, and what Engine.submit raises; then nothing was opened.

        ``public_id``: the client's own name for it; empty = one is made. ``observer`` is told of this stream instead of the registry's own.

        Events come through the event loop, so none can arrive before this returns.
        """
        public_id = public_id or f"{self._epoch}-{request.id:x}"
        name = (request.tenant, public_id)
        if self._is_alive(name):
            raise DuplicateRequestError(f"a request {public_id!r} is alive")
        outputs = [SequenceOutput(index, text) for index, text in enumerate(texts)]
        stream = Stream(
            request,
            outputs,
            self._engine,
            public_id=public_id,
            observer=observer or self._observer,
            clock=self._clock,
        )
        self._engine.submit(request)
        self._streams[request.id] = self._names[name] = stream
        self._readers += 1
        self._idle.clear()
        return stream

    @contextlib.contextmanager
    def expecting(self) -> Iterator[None]:
        """Around what may open a stream, or needs what belongs to this engine: as long as it runs, the registry is not idle."""
        self._expected += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._expected -= 1
            self._look_idle()

    def _look_idle(self) -> None:
        if not self._readers and not self._expected:
            self._idle.set()

    def close(self, stream: Stream, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """The reader of ``stream`` is done with it."""
        if stream.left:
            return
        stream.leave(reason)
        name = _name_of(stream)
        if self._names.get(name) is stream:
            del self._names[name]
        self._readers -= 1
        self._look_idle()
        self._settle(stream)

    def abort(self, public_id: str, why: str, *, tenant: str | None = None) -> bool:
        """End a request by the id that its client knows: ``tenant``'s, or whichever tenant's for None, which is for operators.
        False where none of this id is alive."""
        names = [name for name in self._names if name[1] == public_id] if tenant is None else [(tenant, public_id)]
        alive = [self._names[name] for name in names if self._is_alive(name)]
        for stream in alive:
            stream.abort(RequestCancelledError(why))  # by its own engine, which may be one that was swapped out
        return bool(alive)

    def _is_alive(self, name: tuple[str, str]) -> bool:
        """An id is free again as soon as its request's last word is said, before the reader has gone."""
        stream = self._names.get(name)
        return stream is not None and stream.finished is None and stream.failure is None

    def deliver(self, events: list[Event]) -> None:
        """One step's events, in the engine's order: first tokens first, so that their readers run first."""
        streams = self._streams
        for event in events:
            stream = streams.get(event.request)
            if stream is None:
                continue  # settled by abandon_all: the engine was declared dead and spoke after all
            stream.put(event)
            if stream.left:
                self._settle(stream)

    def fail_all(self, error: ServerError) -> None:
        """End every request that is not complete with ``error``; the engine is told to cancel, and still answers."""
        for stream in self:
            stream.abort(error)

    def abandon_all(self, error: ServerError) -> None:
        """As fail_all, for an engine that will say nothing more."""
        for stream in self:
            stream.fail(error, FinishReason.ENGINE_FAILED)
            stream.abandon()
            self._settle(stream)

    def interrupt_stalled(self, limit: float) -> int:
        """Free the seats of readers that have taken nothing for ``limit`` seconds; how many."""
        stalled = [stream for stream in self if stream.stalled(limit)]
        for stream in stalled:
            stream.interrupt_reader(ReaderStalledError(f"the client read nothing for {limit:g} s while output waited"))
        return len(stalled)

    async def idle(self) -> None:
        """Wait until nobody reads, nor is about to."""
        await self._idle.wait()

    def _settle(self, stream: Stream) -> None:
        if stream.left and stream.finished is not None and self._streams.pop(stream.request.id, None) is not None:
            stream.observer.settled(stream)

    def check_integrity(self) -> None:
        """Raises AssertionError when the books do not balance."""
        readers = sum(not stream.left for stream in self)
        if readers != self._readers or self._idle.is_set() != (readers + self._expected == 0):
            raise AssertionError(
                f"{readers} streams have readers, {self._readers} are counted, idle={self._idle.is_set()}"
            )
        unread = [name for name, stream in self._names.items() if stream.left or _name_of(stream) != name]
        if unread:
            raise AssertionError(f"the names {unread} belong to streams without a reader")
        settled = [stream.request.id for stream in self if stream.left and stream.finished is not None]
        if settled:
            raise AssertionError(f"requests {settled} are settled and still kept")


def _name_of(stream: Stream) -> tuple[str, str]:
    return stream.request.tenant, stream.public_id


async def watch_stalled(registry: StreamRegistry, limit: float) -> None:
    """Cut off, over and over, whoever reads nothing for ``limit`` seconds. Ends by being cancelled."""
    while True:
        await asyncio.sleep(min(1.0, limit / 4))
        if interrupted := registry.interrupt_stalled(limit):
            log.warning("stalled readers lost their streams", streams=interrupted, seconds=limit)
