"""One request of this wire, from its tensors to its responses: the part that both RPCs share."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from protos.inference import grpc_service_pb2 as wire
from server.errors import InvalidRequestError, ReaderStalledError, RequestCancelledError, ServerError
from server.rpc.context import CallContext
from server.rpc.kserve.models import ModelBook
from server.rpc.kserve.responses import Responses, empty_response
from server.rpc.kserve.statistics import Statistics
from server.rpc.kserve.translate import Translated, in_this_wires_names, translate
from server.rpc.opening import Answer, Opener
from server.sequence_output import Delta
from server.streams import Stream

Send = Callable[[wire.ModelInferResponse, Stream | None], Awaitable[None]]
"""Writes a response; told of the stream that it comes from, which knows when a reader stalls."""


@dataclass
class _Tally:
    """What the statistics want to know of one request."""

    arrival: float
    opened: float = 0.0
    stream: Stream | None = None
    failed: bool = False


class InferCalls:
    """Runs requests. Event loop only."""

    def __init__(self, opener: Opener, models: ModelBook, statistics: Statistics) -> None:
        self._opener = opener
        self._models = models
        self._statistics = statistics

    async def whole(
        self, request: wire.ModelInferRequest, context: CallContext, let_in: Callable[[str], Awaitable[None]]
    ) -> wire.ModelInferResponse:
        """One response for the whole request. ``let_in`` hears its id before it is run."""
        async with self._counted(request) as tally:
            asked = self._translate(request, may_stream=False)
            if asked.stop:
                return self._stop(asked)
            answer = await self._open(asked, context, tally)
            async with self._opener.reading(answer.stream, context):
                await let_in(answer.stream.public_id)
                return await self._gather(asked, answer)

    async def stream(self, request: wire.ModelInferRequest, context: CallContext, send: Send) -> None:
        """Any number of responses, the last one marked final. A request that was stopped by its id ends well, as cancelled."""
        async with self._counted(request) as tally:
            asked = self._translate(request, may_stream=True)
            if asked.stop:
                await send(self._stop(asked), None)
                return
            answer = await self._open(asked, context, tally)
            try:
                async with self._opener.reading(answer.stream, context):
                    await (self._send_parts if asked.streaming else self._send_whole)(asked, answer, send)
            except ReaderStalledError:
                raise
            except RequestCancelledError:
                tally.failed = True
                await send(self._responses(asked, answer).final("cancelled"), None)

    # ------------------------------------------------------------------ parts

    def _translate(self, request: wire.ModelInferRequest, *, may_stream: bool) -> Translated:
        try:
            asked = translate(request, self._models, self._opener.parts.get())
            if not may_stream:
                _require_whole(asked)
        except ServerError as error:
            self._opener.refuse(error)
            raise
        return asked

    async def _open(self, asked: Translated, context: CallContext, tally: _Tally) -> Answer:
        try:
            answer = await self._opener.open(asked.message, context, tally.arrival)
        except InvalidRequestError as error:
            raise in_this_wires_names(error, asked.kind) from error
        tally.stream, tally.opened = answer.stream, self._opener.clock()
        return answer

    def _stop(self, asked: Translated) -> wire.ModelInferResponse:
        """End the caller's own request of this id, if it is alive; either way the wish is answered at once."""
        name = asked.message.request_id
        if not name:
            raise InvalidRequestError("id", "must name the request that stop is to end")
        registry = self._opener.parts.get().registry
        registry.abort(name, "the request was stopped by its id", tenant=self._opener.tenant_name())
        return empty_response(asked, name, final=True)

    def _responses(self, asked: Translated, answer: Answer) -> Responses:
        return Responses(asked, answer, block_size=self._opener.parts.get().limits.block_size)

    async def _gather(self, asked: Translated, answer: Answer) -> wire.ModelInferResponse:
        stream = answer.stream
        gathered = [_Gathered() for _ in stream.outputs]
        while deltas := await stream.read():
            for delta in deltas:
                gathered[delta.sequence].add(delta)
        return self._responses(asked, answer).whole([one.delta(index) for index, one in enumerate(gathered)])

    async def _send_whole(self, asked: Translated, answer: Answer, send: Send) -> None:
        await send(await self._gather(asked, answer), answer.stream)
        if asked.parameters.empty_final:
            await send(self._responses(asked, answer).final(), answer.stream)

    async def _send_parts(self, asked: Translated, answer: Answer, send: Send) -> None:
        stream, responses = answer.stream, self._responses(asked, answer)
        is_marked = False
        while deltas := await stream.read():
            for place, delta in enumerate(deltas):
                is_marked = stream.finished is not None and stream.complete and place == len(deltas) - 1
                await send(responses.part(delta, last=is_marked), stream)
        if not is_marked or asked.parameters.empty_final:
            await send(responses.final(), stream)

    @contextlib.asynccontextmanager
    async def _counted(self, request: wire.ModelInferRequest) -> AsyncIterator[_Tally]:
        tally = _Tally(self._opener.clock())
        try:
            yield tally
        except BaseException:
            tally.failed = True
            raise
        finally:
            if tally.failed:
                self._statistics.failed(request.model_name, tally.arrival)
            elif tally.stream is not None:
                self._statistics.succeeded(request.model_name, tally.stream, tally.opened)


def _require_whole(asked: Translated) -> None:
    if asked.streaming:
        name = "stream" if asked.kind == "text" else "streaming"
        raise InvalidRequestError(name, "must be false in ModelInfer; ModelStreamInfer streams")


class _Gathered:
    """All of one output."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.texts: list[str] = []
        self.logprobs: list[float] = []

    def add(self, delta: Delta) -> None:
        self.tokens += delta.tokens
        self.texts.append(delta.text)
        self.logprobs += delta.logprobs

    def delta(self, index: int) -> Delta:
        return Delta(index, self.tokens, "".join(self.texts), self.logprobs)
