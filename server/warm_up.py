"""The first generations, through the real path: socket, tokenizer, admission, engine, stream. Only then is the server ready.

Two of them, the second sent when the first streams: libraries make their kernels when a shape of step is first seen, and a step
that decodes one sequence while it computes another's prompt is a shape of its own.
"""

from __future__ import annotations

import asyncio

import grpc

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from server.rpc.warm_up_pass import WARM_UP_KEY

FIRST_PROMPT = "Hello"
SECOND_PROMPT = "The quick brown fox jumps over the lazy dog. " * 2
"""A chunk of some tokens, few enough for the smallest context."""
SECOND_TOKENS = 2


class WarmUpError(Exception):
    """The warm-up did not come to a good end: the server cannot serve."""


async def warm_up(target: str, secret: str, *, tokens: int, timeout: float) -> int:  # noqa: ASYNC109 - a gRPC deadline
    """Generate at ``target``; returns how many tokens the first generation gave. Raises WarmUpError."""
    streaming = asyncio.Event()
    async with grpc.aio.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel:
        generation = _Generation(GenerationStub(channel), secret, timeout)

        async def beside() -> int:
            await streaming.wait()
            return await generation.run(SECOND_PROMPT, SECOND_TOKENS, asyncio.Event())

        second = asyncio.create_task(beside())
        try:
            came = await generation.run(FIRST_PROMPT, tokens, streaming)
            await second
        except grpc.aio.AioRpcError as error:
            raise WarmUpError(f"the warm-up generation ended with {error.code().name}: {error.details()}") from error
        finally:
            second.cancel()
    return came


class _Generation:
    def __init__(self, stub: GenerationStub, secret: str, timeout: float) -> None:
        self._stub = stub
        self._metadata = ((WARM_UP_KEY, secret),)
        self._timeout = timeout

    async def run(self, prompt: str, tokens: int, streaming: asyncio.Event) -> int:
        """Set ``streaming`` at the first token, or at the end; returns how many came."""
        request = pb.GenerateRequest(prompt=pb.Prompt(text=prompt), max_tokens=tokens, priority=pb.PRIORITY_INTERACTIVE)
        came, final = 0, False
        try:
            async for message in self._stub.Generate(request, metadata=self._metadata, timeout=self._timeout):
                came += len(message.delta.tokens)
                final = message.HasField("final")
                streaming.set()
        finally:
            streaming.set()
        if not final:
            raise WarmUpError("the warm-up generation ended without a Final")
        return came
