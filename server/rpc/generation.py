"""firsttoken.v1.Generation: protobuf in, one stream of the registry, protobuf out."""

from __future__ import annotations

import hmac

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationServicer
from server.errors import InvalidRequestError
from server.readiness import Readiness, State
from server.rpc.context import CallContext
from server.rpc.messages import Completions, PromptMessages, delta_message, final_message
from server.rpc.opening import Answer, Opener
from server.rpc.prompts import check_ids, check_prompt

REQUEST_ID_KEY = "firsttoken-request-id"
"""Initial metadata of an admitted call: the id that the logs use, the client's own where it gave one."""
WARM_UP_KEY = "firsttoken-warm-up"
"""Metadata by which the server's own warm-up passes while nobody else is let in."""


class GenerationService(GenerationServicer):
    """Event loop only. Errors are raised; :mod:`server.rpc.interceptors` makes statuses of them."""

    def __init__(self, opener: Opener, readiness: Readiness, *, warm_up_secret: str) -> None:
        self._opener = opener
        self._parts = opener.parts
        self._readiness = readiness
        self._warm_up_secret = warm_up_secret

    async def Generate(self, request: pb.GenerateRequest, context: CallContext) -> None:
        answer = await self._open(request, context)
        async with self._opener.reading(answer.stream, context):
            await context.send_initial_metadata(((REQUEST_ID_KEY, answer.stream.public_id),))
            await self._write_all(answer, context)

    async def Complete(self, request: pb.GenerateRequest, context: CallContext) -> pb.CompleteResponse:
        answer = await self._open(request, context)
        stream = answer.stream
        async with self._opener.reading(stream, context):
            await context.send_initial_metadata(((REQUEST_ID_KEY, stream.public_id),))
            completions = Completions(answer)
            while deltas := await stream.read():
                completions.add(deltas)
            return completions.message()

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

    # ------------------------------------------------------------------ one call

    async def _open(self, request: pb.GenerateRequest, context: CallContext) -> Answer:
        arrival = self._opener.clock()
        return await self._opener.open(request, context, arrival, is_warm_up=self._is_warm_up(context))

    async def _write_all(self, answer: Answer, context: CallContext) -> None:
        stream, prompt = answer.stream, PromptMessages(answer)
        while deltas := await stream.read():
            if prompt.wanted:
                await self._write_prompt(prompt, context)
            for delta in deltas:
                stream.writing()
                await context.write(delta_message(delta))
                stream.written()
        if prompt.wanted:
            await self._write_prompt(prompt, context)
        if stream.finished is not None:
            await context.write(final_message(stream, stream.finished))

    async def _write_prompt(self, prompt: PromptMessages, context: CallContext) -> None:
        event = prompt.take()
        if event is not None:
            await context.write(pb.GenerateResponse(prompt=event))

    def _is_warm_up(self, context: CallContext) -> bool:
        """Only while nobody else is let in, and only with the secret that this process drew at its start."""
        if self._readiness.state is not State.STARTING:
            return False
        given = dict(context.invocation_metadata() or ()).get(WARM_UP_KEY, "")
        return hmac.compare_digest(str(given).encode(), self._warm_up_secret.encode())
