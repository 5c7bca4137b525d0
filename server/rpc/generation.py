"""firsttoken.v1.Generation: protobuf in, one stream of the registry, protobuf out."""

from __future__ import annotations

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationServicer
from server.errors import InvalidRequestError
from server.rpc.context import CallContext, Metadata
from server.rpc.messages import Completions, PromptMessages, delta_message, final_message
from server.rpc.opening import Answer, Opener
from server.rpc.prompts import check_ids, check_prompt
from server.rpc.warm_up_pass import WarmUpPass
from server.streams import Stream

REQUEST_ID_KEY = "firsttoken-request-id"
"""Initial metadata of an admitted call: the id that the logs use, the client's own where it gave one."""
PRIORITY_KEY = "firsttoken-priority"
"""Initial metadata of a call that its tenant's ceiling lowered: the class that it runs in."""


class GenerationService(GenerationServicer):
    """Event loop only. Errors are raised; :mod:`server.rpc.interceptors` makes statuses of them."""

    def __init__(self, opener: Opener, warm_up: WarmUpPass) -> None:
        self._opener = opener
        self._parts = opener.parts
        self._warm_up = warm_up

    async def Generate(self, request: pb.GenerateRequest, context: CallContext) -> None:
        answer = await self._open(request, context)
        async with self._opener.reading(answer.stream, context):
            await context.send_initial_metadata(initial_metadata(answer))
            await _write_all(answer, context)

    async def Complete(self, request: pb.GenerateRequest, context: CallContext) -> pb.CompleteResponse:
        answer = await self._open(request, context)
        stream = answer.stream
        async with self._opener.reading(stream, context):
            await context.send_initial_metadata(initial_metadata(answer))
            completions = Completions(answer)
            while deltas := await stream.read():
                completions.add(deltas)
            return completions.message()

    async def Tokenize(self, request: pb.TokenizeRequest, context: CallContext) -> pb.TokenizeResponse:
        parts = self._parts.get()
        prompt = check_prompt(request.prompt, parts.limits)
        if prompt.ids:
            raise InvalidRequestError("prompt.token_ids", "are tokens already; give text or messages")
        with self._opener.counted():
            return pb.TokenizeResponse(ids=await parts.prompts.read(prompt))

    async def Detokenize(self, request: pb.DetokenizeRequest, context: CallContext) -> pb.DetokenizeResponse:
        parts = self._parts.get()
        if not request.ids:
            raise InvalidRequestError("ids", "must have at least 1 token, it has 0")
        if len(request.ids) > parts.limits.max_context:
            raise InvalidRequestError(
                "ids", f"must have at most {parts.limits.max_context} tokens, it has {len(request.ids)}"
            )
        check_ids("ids", request.ids, parts.limits.vocab_size)
        with self._opener.counted():
            text = await parts.prompts.write(list(request.ids), show_special_tokens=request.show_special_tokens)
        return pb.DetokenizeResponse(text=text)

    # ------------------------------------------------------------------ one call

    async def _open(self, request: pb.GenerateRequest, context: CallContext) -> Answer:
        arrival = self._opener.clock()
        return await self._opener.open(request, context, arrival, is_warm_up=self._warm_up.admits(context))


async def _write_all(answer: Answer, context: CallContext) -> None:
    stream, prompt = answer.stream, PromptMessages(answer)
    while deltas := await stream.read():
        if prompt.wanted:
            await _write_prompt(prompt, stream, context)
        for delta in deltas:
            await _write(delta_message(delta), stream, context)
    if prompt.wanted:
        await _write_prompt(prompt, stream, context)
    if stream.finished is not None:
        await _write(final_message(stream, stream.finished), stream, context)


async def _write_prompt(prompt: PromptMessages, stream: Stream, context: CallContext) -> None:
    event = prompt.take()
    if event is not None:
        await _write(pb.GenerateResponse(prompt=event), stream, context)


async def _write(message: pb.GenerateResponse, stream: Stream, context: CallContext) -> None:
    """Whatever it is: a client that does not take it loses its stream."""
    stream.writing()
    await context.write(message)
    stream.written()


def initial_metadata(answer: Answer) -> Metadata:
    """What a client hears before the first token."""
    told = [(REQUEST_ID_KEY, answer.stream.public_id)]
    if answer.lowered:
        told.append((PRIORITY_KEY, answer.stream.request.priority.name.lower()))
    return told
