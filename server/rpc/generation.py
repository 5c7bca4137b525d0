"""firsttoken.v1.Generation: protobuf in, one stream of the registry, protobuf out."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable

import msgspec

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationServicer
from server.engine import EngineInfo, FinishReason, PriorityClass
from server.errors import InternalError, InvalidRequestError, ReaderStalledError, ServerError
from server.readiness import Readiness, Slot, State
from server.rpc.context import CallContext
from server.rpc.limits import RequestLimits
from server.rpc.messages import delta_message, final_message
from server.rpc.prompt_reader import PromptReader
from server.rpc.prompts import check_ids, check_prompt
from server.rpc.validation import Checked, check
from server.stream_registry import StreamRegistry
from server.streams import Stream, Unobserved, departure
from server.telemetry.requests import RequestTelemetry
from server.text.output import OutputText
from server.text.tokenizer import TextTokenizer

REQUEST_ID_KEY = "firsttoken-request-id"
"""Initial metadata of an admitted call: the id that the logs use."""
WARM_UP_KEY = "firsttoken-warm-up"
"""Metadata by which the server's own warm-up passes while nobody else is let in."""


class GenerationParts(msgspec.Struct, frozen=True):
    """What exists once the engine is loaded."""

    info: EngineInfo
    limits: RequestLimits
    registry: StreamRegistry
    tokenizer: TextTokenizer
    prompts: PromptReader


class GenerationService(GenerationServicer):
    """Event loop only. Errors are raised; :mod:`server.rpc.interceptors` makes statuses of them."""

    def __init__(
        self,
        parts: Slot[GenerationParts],
        readiness: Readiness,
        telemetry: RequestTelemetry,
        *,
        warm_up_secret: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._readiness = readiness
        self._telemetry = telemetry
        self._warm_up_secret = warm_up_secret
        self._clock = clock

    async def Generate(self, request: pb.GenerateRequest, context: CallContext) -> None:
        arrival = self._clock()
        try:
            stream = await self._open(request, context, arrival)
        except asyncio.CancelledError:
            self._telemetry.refused(_departure_error(context), _priority_of(request))
            raise
        except Exception as error:
            self._telemetry.refused(error, _priority_of(request))
            raise
        await self._serve(stream, context)

    async def Tokenize(self, request: pb.TokenizeRequest, context: CallContext) -> pb.TokenizeResponse:
        parts = self._parts.get()
        prompt = check_prompt(request.prompt, parts.limits)
        if prompt.ids:
            raise InvalidRequestError("prompt.token_ids", "are tokens already; give text or messages")
        return pb.TokenizeResponse(ids=await parts.prompts.read(prompt))

    async def Detokenize(self, request: pb.DetokenizeRequest, context: CallContext) -> pb.DetokenizeResponse:
        parts = self._parts.get()
        if not request.ids:
            raise InvalidRequestError("ids", "must have at least 1 token, it has 0")
        check_ids("ids", request.ids, parts.limits.vocab_size)
        text = await parts.prompts.write(list(request.ids), show_special_tokens=request.show_special_tokens)
        return pb.DetokenizeResponse(text=text)

    # ------------------------------------------------------------------ one Generate call

    async def _open(self, request: pb.GenerateRequest, context: CallContext, arrival: float) -> Stream:
        """Validate, tokenize, validate the rest, submit. Until here a refusal has cost the engine nothing."""
        remaining = context.time_remaining()
        is_warm_up = self._is_warm_up(context)
        if not is_warm_up:
            self._readiness.require_open()
        parts = self._parts.get()
        checked = check(request, parts.limits)
        ids = await parts.prompts.read(checked.prompt)
        if not is_warm_up:
            self._readiness.require_open()  # a drain may have begun meanwhile
        final = checked.build(
            ids,
            parts.limits,
            request_id=parts.registry.new_id(),
            end_ids=parts.info.end_ids,
            arrival=arrival,
            deadline=None if remaining is None else arrival + remaining,
        )
        texts = [_output_text(parts, checked, final.prompt) for _ in range(final.n)]
        return parts.registry.open(final, texts, Unobserved() if is_warm_up else None)

    async def _serve(self, stream: Stream, context: CallContext) -> None:
        registry = self._parts.get().registry
        reason = FinishReason.CANCELLED
        stream.attach(asyncio.current_task())
        try:
            await context.send_initial_metadata(((REQUEST_ID_KEY, stream.public_id),))
            await self._write_all(stream, context)
        except asyncio.CancelledError:
            if isinstance(stream.failure, ReaderStalledError):
                _uncancel()
                raise stream.failure from None
            reason = FinishReason.DEADLINE if _deadline_passed(context) else FinishReason.CANCELLED
            raise
        except ServerError:
            raise
        except Exception:
            stream.failure = stream.failure or InternalError("the stream's handler failed")
            raise
        finally:
            registry.close(stream, reason)

    async def _write_all(self, stream: Stream, context: CallContext) -> None:
        while deltas := await stream.read():
            for delta in deltas:
                stream.writing()
                await context.write(delta_message(delta))
                stream.written()
        if stream.finished is not None:
            await context.write(final_message(stream, stream.finished))

    def _is_warm_up(self, context: CallContext) -> bool:
        """Only while nobody else is let in, and only with the secret that this process drew at its start."""
        if self._readiness.state is not State.STARTING:
            return False
        given = dict(context.invocation_metadata() or ()).get(WARM_UP_KEY, "")
        return hmac.compare_digest(str(given).encode(), self._warm_up_secret.encode())


def _output_text(parts: GenerationParts, checked: Checked, prompt: tuple[int, ...]) -> OutputText:
    hidden = frozenset(parts.info.end_ids) | frozenset(checked.stop_ids)
    return OutputText(parts.tokenizer, prompt_ids=prompt, stop_strings=checked.stop_strings, hidden_ids=hidden)


def _priority_of(request: pb.GenerateRequest) -> PriorityClass:
    """The class to count a refused request under."""
    return {pb.PRIORITY_STANDARD: PriorityClass.STANDARD, pb.PRIORITY_BATCH: PriorityClass.BATCH}.get(
        request.priority, PriorityClass.INTERACTIVE
    )


def _deadline_passed(context: CallContext) -> bool:
    remaining = context.time_remaining()
    return remaining is not None and remaining <= 0


def _departure_error(context: CallContext) -> ServerError:
    return departure(FinishReason.DEADLINE if _deadline_passed(context) else FinishReason.CANCELLED)


def _uncancel() -> None:
    """The cancellation was ours, and has done its work: to interrupt a write."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
