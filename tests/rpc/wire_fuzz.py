"""Wild requests against a running server, on both wires: a sane beginning of each, so that many get through, and wild ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import grpc
from google.protobuf.message import Message

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.inference import grpc_service_pb2 as wire
from server.errors import InternalError
from server.rpc.status import TABLE
from tests.rpc.wild_messages import WildMessages

GENERATION, INFERENCE = "/firsttoken.v1.Generation/", "/inference.GRPCInferenceService/"
KNOWN = {grpc.StatusCode.OK.value[0]} | {code for kind, code, _ in TABLE if kind is not InternalError}
"""Every code that an answer may have: all of the table, but a fault of the server's own."""
PATIENCE = 60.0
"""Seconds after which a request counts as hung."""


def sane(number: int) -> list[tuple[str, Message, bool]]:
    """(method, message, whether it is a stream of requests): requests that would be served as they are."""
    ids = pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[number % 250 + 1])), max_tokens=3)
    text = pb.GenerateRequest(prompt=pb.Prompt(text=f"Prompt {number}"), max_tokens=number % 20)
    infer = wire.ModelInferRequest(model_name="ensemble")
    infer.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"Hello")
    infer.inputs.add(name="max_tokens", datatype="INT32", shape=[1]).contents.int_contents.append(3)
    tokenize = pb.TokenizeRequest(prompt=pb.Prompt(text="Hello"))
    return [
        (GENERATION + "Generate", ids, False),
        (GENERATION + "Complete", text, False),
        (INFERENCE + "ModelInfer", infer, False),
        (INFERENCE + "ModelStreamInfer", infer, True),
        (GENERATION + "Tokenize", tokenize, False),
        (GENERATION + "Detokenize", pb.DetokenizeRequest(ids=[1, 2]), False),
        (INFERENCE + "ModelConfig", wire.ModelConfigRequest(name="ensemble"), False),
    ]


def draw(wild: WildMessages, number: int) -> tuple[str, bytes, bool]:
    """The ``number``-th request: a sane one with wild fields, a wild one, or a damaged one."""
    requests = sane(number)
    method, message, streams = requests[number % len(requests)]
    kind = number // len(requests) % 3
    if kind == 1:
        message = type(message)()
    if kind != 2:
        # Long outputs would only take time: what max_tokens may be is tried elsewhere.
        wild.fill(message)
        if isinstance(message, pb.GenerateRequest) and message.max_tokens > 50:
            message.max_tokens = 50
    data = message.SerializeToString()
    return method, wild.mutate(data) if kind == 2 else data, streams


async def send(channel: Any, method: str, data: bytes, *, streams: bool) -> int:
    """The status code that came."""
    call = channel.stream_stream(method) if streams else channel.unary_stream(method)
    answer = call(iter([data]) if streams else data, timeout=PATIENCE)
    try:
        async for _ in answer:
            pass
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and answer.time_remaining() == 0.0:
            raise AssertionError(f"no answer within {PATIENCE} s: {method} {data!r}") from error
        return int(error.code().value[0])
    return 0


async def fuzz(channel: Any, count: int, *, seed: int = 0, at_once: int = 64) -> Counter[int]:
    """Send ``count`` requests, ``at_once`` at a time; how often each code came. Raises AssertionError for one that hangs."""
    wild = WildMessages(seed)
    requests = [draw(wild, number) for number in range(count)]
    codes: Counter[int] = Counter()

    async def work() -> None:
        while requests:
            method, data, streams = requests.pop()
            codes[await send(channel, method, data, streams=streams)] += 1

    await asyncio.gather(*(work() for _ in range(at_once)))
    return codes
