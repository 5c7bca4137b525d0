"""From a request as it came over any wire to its open stream: the one way in."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator

import grpc
import msgspec

from protos.firsttoken.v1 import generation_pb2 as pb
from server.access.caller import caller
from server.access.quotas import Lease, Quotas
from server.access.tenant import Tenant
from server.engine import EngineInfo, FinishReason, GenerationRequest, PriorityClass
from server.errors import InternalError, ReaderStalledError, ServerError
from server.readiness import Readiness, Slot
from server.rpc.context import CallContext
from server.rpc.guide_reader import GuideReader
from server.rpc.limits import RequestLimits
from server.rpc.prompt_reader import PromptReader
from server.rpc.validation import Checked, check
from server.stream_registry import StreamRegistry
from server.streams import Observer, Stream, Unobserved, departure
from server.telemetry.requests import RequestTelemetry
from server.telemetry.trace import RequestTrace
from server.text.output import OutputText
from server.text.tokenizer import TextTokenizer

WAY, ROUNDED_UP = 0.05, 0.01
"""What makes our deadline later than the client's: the seconds that its request took to get here, and the share by which gRPC's clients round a
time-out up on the wire (three digits: grpc's timeout_encoding.cc)."""


class GenerationParts(msgspec.Struct, frozen=True):
    """What exists once the engine is loaded."""

    info: EngineInfo
    limits: RequestLimits
    registry: StreamRegistry
    tokenizer: TextTokenizer
    prompts: PromptReader
    guides: GuideReader


class Answer(msgspec.Struct, frozen=True):
    """A request that was let in."""

    stream: Stream
    echo: str | None
    """The prompt's text, where it is to be given back."""
    lowered: bool = False
    """It runs in a less urgent class than it asked for."""


class Opener:
    """Validates, asks for room, tokenizes, validates the rest, submits. Event loop only."""

    def __init__(
        self,
        parts: Slot[GenerationParts],
        readiness: Readiness,
        telemetry: RequestTelemetry,
        quotas: Quotas,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.parts = parts
        self.clock = clock
        self._quotas = quotas
        self._open_streams: dict[Stream, tuple[StreamRegistry, Lease]] = {}
        self._readiness = readiness
        self._telemetry = telemetry

    async def open(
        self, request: pb.GenerateRequest, context: CallContext, arrival: float, *, is_warm_up: bool = False
    ) -> Answer:
        """``arrival`` is this clock's time at which the server read the request. ``is_warm_up``: the server's own, let in before
        anybody else and not counted.

        Raises ServerErrors; until here a refusal has cost the engine nothing.
        """
        trace = None if is_warm_up else self._telemetry.trace(context.invocation_metadata() or (), arrival)
        try:
            return await self._open(request, context, arrival, trace, is_warm_up=is_warm_up)
        except asyncio.CancelledError:
            error = departure(_reason(context, self.clock() - arrival))
            error.request_id = request.request_id[:128]
            self._telemetry.refused(error, _priority_of(request), tenant=caller().name, trace=trace)
            raise
        except Exception as error:
            if isinstance(error, ServerError) and request.request_id.isascii():
                error.request_id = request.request_id[:128]
            self._telemetry.refused(
                error,
                _priority_of(request),
                tenant=caller().name,
                trace=trace,
                time_left=context.time_remaining(),
            )
            raise

    def tenant_name(self) -> str:
        """Whose call this is."""
        return caller().name

    def refuse(self, error: ServerError) -> None:
        """Count a request that its wire refused before it came here."""
        self._telemetry.refused(error, tenant=caller().name)

    async def _open(
        self,
        request: pb.GenerateRequest,
        context: CallContext,
        arrival: float,
        trace: RequestTrace | None,
        *,
        is_warm_up: bool,
    ) -> Answer:
        if not is_warm_up:
            self._readiness.require_open()
        tenant, answer = caller(), None
        lease = self._quotas.enter(tenant)
        try:
            while answer is None:
                parts = self.parts.get()
                checked = _bound(check(request, parts.limits, parts.info), request, tenant)
                with parts.registry.expecting():
                    answer = await self._submit(
                        parts, checked, context, arrival, lease, trace=trace, is_warm_up=is_warm_up
                    )
        except BaseException:
            lease.end(0)
            raise
        lowered = request.priority != pb.PRIORITY_UNSPECIFIED and checked.priority != _priority_of(request)
        return msgspec.structs.replace(answer, lowered=lowered)

    async def _submit(
        self,
        parts: GenerationParts,
        checked: Checked,
        context: CallContext,
        arrival: float,
        lease: Lease,
        *,
        trace: RequestTrace | None,
        is_warm_up: bool,
    ) -> Answer | None:
        """None where another engine took the place of ``parts``' meanwhile: begin again with that one."""
        remaining = context.time_remaining()
        deadline = None if remaining is None else arrival + remaining
        _require_a_chance(parts, checked, arrival, deadline, lease)
        await parts.guides.read(checked.sampling.guide)
        ids = await parts.prompts.read(checked.prompt)
        bad_tokens = await parts.prompts.read_words(checked.bad_words, field="sampling.bad_words")
        if not is_warm_up:
            self._readiness.require_open()  # a drain may have begun meanwhile
        final = checked.build(
            ids,
            parts.limits,
            parts.info,
            request_id=parts.registry.new_id(),
            arrival=arrival,
            deadline=deadline,
            bad_tokens=bad_tokens,
            traced=trace is not None,
        )
        lease.reserve(len(final.prompt) + final.n * final.max_tokens)
        echo = await _echo(parts, checked, final) if checked.echo else None
        if self.parts.get() is not parts:
            return None
        texts = [output_text(parts, checked, final) for _ in range(final.n)]
        observer = self._observer(trace, is_warm_up=is_warm_up)
        stream = parts.registry.open(final, texts, observer, public_id=checked.request_id)
        self._open_streams[stream] = parts.registry, lease
        return Answer(stream, echo)

    def _observer(self, trace: RequestTrace | None, *, is_warm_up: bool) -> Observer | None:
        """None: the registry's own."""
        if is_warm_up:
            return Unobserved()
        return None if trace is None else self._telemetry.traced(trace)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Around a call that generates nothing and still costs something: it counts among its tenant's requests.

        Raises OverloadedError.
        """
        lease = self._quotas.enter(caller())
        try:
            with self.parts.get().registry.expecting():
                yield
        finally:
            lease.end(0)

    @contextlib.asynccontextmanager
    async def reading(self, stream: Stream, context: CallContext) -> AsyncIterator[None]:
        """Around all that is done with an open stream. Leaves it whatever happens, for the right reason; errors carry its id."""
        reason = FinishReason.CANCELLED
        stream.attach(asyncio.current_task())
        try:
            yield
        except asyncio.CancelledError:
            if isinstance(stream.failure, ReaderStalledError):
                _uncancel()
                stream.failure.request_id = stream.public_id
                raise stream.failure from None
            reason = _reason(context, self.clock() - stream.request.arrival)
            raise
        except ServerError as error:
            error.request_id = stream.public_id
            raise
        except grpc.aio.InternalError as broken:
            # A write that waited for the client's window learns of the connection's end before gRPC cancels the call.
            stream.failure = stream.failure or departure(_reason(context, self.clock() - stream.request.arrival))
            raise stream.failure from broken
        except Exception:
            stream.failure = stream.failure or InternalError("the stream's handler failed")
            raise
        finally:
            registry, lease = self._open_streams.pop(stream)
            registry.close(stream, reason)
            outputs = sum(output.completion_tokens for output in stream.outputs)
            lease.end(len(stream.request.prompt) + outputs)


def _bound(checked: Checked, request: pb.GenerateRequest, tenant: Tenant) -> Checked:
    """``checked`` under its tenant's rules. Raises PermissionDeniedError."""
    asked = None if request.priority == pb.PRIORITY_UNSPECIFIED else checked.priority
    return msgspec.structs.replace(
        checked,
        priority=tenant.priority(asked),
        cache_salt=tenant.block_salt(checked.cache_salt),
        tenant=tenant.name,
    )


def output_text(parts: GenerationParts, checked: Checked, request: GenerationRequest) -> OutputText:
    """The text stage of one output."""
    stops = () if checked.include_stop else request.stop_ids
    return OutputText(
        parts.tokenizer,
        prompt_ids=request.prompt,
        stop_strings=checked.stop_strings,
        hidden_ids=frozenset((*request.end_ids, *stops)),
        include_stop=checked.include_stop,
    )


def _require_a_chance(
    parts: GenerationParts, checked: Checked, arrival: float, deadline: float | None, lease: Lease
) -> None:
    """Refuse, before anybody tokenizes, what would be refused however short its prompt turned out. Raises ServerErrors."""
    parts.registry.require_room(checked.tenant)
    if checked.max_tokens is not None:
        lease.reserve(1 + checked.n * checked.max_tokens)
    if not checked.prompt.ids and not (checked.ttft_seconds is None and deadline is None):
        bare = msgspec.structs.replace(checked, retention=(), truncate_prompt=None)
        shortest = bare.build((0,), parts.limits, parts.info, request_id=0, arrival=arrival, deadline=deadline)
        parts.registry.require_time(shortest)


async def _echo(parts: GenerationParts, checked: Checked, request: GenerationRequest) -> str:
    """A prompt's text as it was sent; of ids, conversations and what was cut, as the tokenizer writes it."""
    if checked.prompt.text and checked.truncate_prompt is None:
        return checked.prompt.text
    return await parts.prompts.write(request.prompt, show_special_tokens=True)


def _priority_of(request: pb.GenerateRequest) -> PriorityClass:
    """The class to count a refused request under."""
    return {pb.PRIORITY_STANDARD: PriorityClass.STANDARD, pb.PRIORITY_BATCH: PriorityClass.BATCH}.get(
        request.priority, PriorityClass.INTERACTIVE
    )


def _reason(context: CallContext, spent: float) -> FinishReason:
    """Why a call was cancelled from outside, ``spent`` seconds after its request was read.

    gRPC does not say, and a client gives up at its own deadline, a little before the one that is counted from its time-out here.
    """
    remaining = context.time_remaining()
    passed = remaining is not None and remaining <= WAY + ROUNDED_UP * (spent + remaining)
    return FinishReason.DEADLINE if passed else FinishReason.CANCELLED


def _uncancel() -> None:
    """The cancellation was ours, and has done its work: to interrupt a write."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
