"""The first generation, through the real path: socket, tokenizer, admission, engine, stream. Only then is the server ready."""

from __future__ import annotations

import grpc

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from server.rpc.generation import WARM_UP_KEY

PROMPT = "Hello"


class WarmUpError(Exception):
    """The warm-up did not come to a good end: the server cannot serve."""


async def warm_up(target: str, secret: str, *, tokens: int, timeout: float) -> int:  # noqa: ASYNC109 - a gRPC deadline
    """Generate at ``target``; returns how many tokens came. Raises WarmUpError."""
    request = pb.GenerateRequest(prompt=pb.Prompt(text=PROMPT), max_tokens=tokens, priority=pb.PRIORITY_INTERACTIVE)
    came = 0
    async with grpc.aio.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = GenerationStub(channel).Generate(request, metadata=((WARM_UP_KEY, secret),), timeout=timeout)
        try:
            async for message in call:
                came += len(message.delta.tokens)
                final = message.HasField("final")
        except grpc.aio.AioRpcError as error:
            raise WarmUpError(f"the warm-up generation ended with {error.code().name}: {error.details()}") from error
    if not final:
        raise WarmUpError("the warm-up generation ended without a Final")
    return came
