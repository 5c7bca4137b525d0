"""A small firsttoken server with scripted behaviour, on a real socket: what the client must cope with, at will."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as PackedAny
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as ProtoMessage
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import generation_pb2_grpc, operations_pb2, operations_pb2_grpc

Behaviour: TypeAlias = "Callable[[Any, Any], Awaitable[None]]"
"""What one Generate call does: given the request and the context, it writes messages or aborts."""


class FakeServer(generation_pb2_grpc.GenerationServicer, operations_pb2_grpc.OperationsServicer):
    """Notes what it was asked. Behaviours are used up one a Generate call; then it echoes the prompt's words."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self.behaviours = deque(behaviours)
        self.unary_failures: deque[Behaviour] = deque()
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str]] = []
        self.seconds_left: list[float | None] = []
        self.peers: set[str] = set()
        self.cancelled = threading.Event()
        self.running = 0
        self.health = health_pb2.HealthCheckResponse.SERVING
        self.health_checks = 0
        self.timeouts_asked = 0
        self.timeouts: operations_pb2.ClientTimeouts | None = None
        self.address = ""

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> None:
        self._note(request, context)
        self.running += 1
        try:
            behaviour = self.behaviours.popleft() if self.behaviours else echo
            await behaviour(request, context)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self.running -= 1

    async def Complete(self, request: pb.GenerateRequest, context: Any) -> pb.CompleteResponse:
        await self._unary(request, context)
        outputs = [
            pb.Completion(index=index, tokens=[index], text=text_of(request.prompt)) for index in range(request.n or 1)
        ]
        return pb.CompleteResponse(outputs=outputs, final=final().final)

    async def Abort(self, request: Any, context: Any) -> operations_pb2.AbortResponse:
        await self._unary(request, context)
        return operations_pb2.AbortResponse(aborted=request.request_id == "alive")

    async def GetSteps(self, request: Any, context: Any) -> operations_pb2.GetStepsResponse:
        await self._unary(request, context)
        rows = [operations_pb2.StepRow(sequence=7, new_tokens=1, past=9, blocks=2, want="sample")]
        waiting = operations_pb2.WaitingByClass(batch=3)
        step = operations_pb2.Step(
            step=5, age=0.5, outcome="ok", rows=rows, opened=[7], waiting=waiting, blocks_free=11
        )
        return operations_pb2.GetStepsResponse(steps=[step] * request.last)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Any) -> pb.TokenizeResponse:
        await self._unary(request, context)
        return pb.TokenizeResponse(ids=[len(word) for word in text_of(request.prompt).split()])

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:
        await self._unary(request, context)
        return pb.DetokenizeResponse(text=f"{list(request.ids)}{request.show_special_tokens}")

    async def GetServerInfo(self, request: Any, context: Any) -> operations_pb2.GetServerInfoResponse:
        # Clients ask in the background, too, so this is none of what a test noted.
        self.timeouts_asked += 1
        limits = operations_pb2.Limits(vocab_size=49152, block_size=16)
        capabilities = operations_pb2.EngineCapabilities(preemption=True)
        return operations_pb2.GetServerInfoResponse(
            version="1.2.3",
            engine="simulated",
            model="tiny",
            fingerprint="f",
            limits=limits,
            capabilities=capabilities,
            client_timeouts=self.timeouts,
        )

    async def GetLoad(self, request: Any, context: Any) -> operations_pb2.GetLoadResponse:
        await self._unary(request, context)
        waiting = operations_pb2.WaitingByClass(interactive=1, standard=2, batch=3)
        return operations_pb2.GetLoadResponse(ready=True, running=4, waiting=waiting, kv_utilisation=0.5)

    async def Check(self, request: Any, context: Any) -> health_pb2.HealthCheckResponse:
        self.health_checks += 1
        return health_pb2.HealthCheckResponse(status=self.health)

    async def Watch(self, request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the client asks by Check")

    List = Watch

    async def _unary(self, request: Any, context: Any) -> None:
        self._note(request, context)
        if self.unary_failures:
            await self.unary_failures.popleft()(request, context)

    def _note(self, request: Any, context: Any) -> None:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.seconds_left.append(context.time_remaining())
        self.peers.add(context.peer())


def text_of(prompt: pb.Prompt) -> str:
    if prompt.WhichOneof("kind") == "messages":
        return "\n".join(f"{message.role}: {message.content}" for message in prompt.messages.messages)
    return str(prompt.text)


# --------------------------------------------------------------------------- behaviours


def delta(text: str, *tokens: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(delta=pb.Delta(text=text, tokens=tokens))


def final(reason: pb.FinishReason | int = pb.FINISH_REASON_LENGTH, **fields: Any) -> pb.GenerateResponse:
    usage = pb.Usage(prompt_tokens=5, cached_tokens=4, completion_tokens=3, discarded_tokens=2)
    timings = pb.Timings(queued=0.1, prefill=0.2, first_token=0.3, total=0.4)
    return pb.GenerateResponse(
        final=pb.Final(finish_reason=pb.FinishReason.Name(reason), usage=usage, timings=timings, **fields)
    )


async def echo(request: pb.GenerateRequest, context: Any) -> None:
    """Each word of the prompt is a token."""
    await take_in(context)
    for word in text_of(request.prompt).split():
        await context.write(delta(word + " ", len(word)))
    await context.write(final())


def say(*messages: pb.GenerateResponse) -> Behaviour:
    async def behaviour(_: Any, context: Any) -> None:
        for message in messages:
            await context.write(message)

    return behaviour


async def endless(_: Any, context: Any) -> None:
    """A token every 5 ms until cancelled."""
    await take_in(context)
    for number in range(100_000):
        await context.write(delta(f"{number} ", number))
        await asyncio.sleep(0.005)


async def silent(_: Any, context: Any) -> None:
    """Takes the request in and never says a word."""
    await take_in(context)
    await asyncio.sleep(60)


async def take_in(context: Any) -> None:
    """The real server sends headers once a request is admitted."""
    await context.send_initial_metadata((("firsttoken-request-id", "17"),))


def refuse(
    code: grpc.StatusCode, *details: ProtoMessage, message: str = "refused", taken_in: bool = False, after: int = 0
) -> Behaviour:
    """Abort: at once, after headers, or after so many messages."""

    async def behaviour(_: Any, context: Any) -> None:
        if taken_in:
            await take_in(context)
            await asyncio.sleep(0.02)  # else both would leave in one frame
        for number in range(after):
            await context.write(delta(str(number), number))
        packed = [PackedAny() for _ in details]
        for target, detail in zip(packed, details, strict=True):
            target.Pack(detail)
        status = status_pb2.Status(code=code.value[0], message=message, details=packed)
        await context.abort_with_status(rpc_status.to_status(status))

    return behaviour


def retry_info(seconds: float) -> error_details_pb2.RetryInfo:
    delay = Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    return error_details_pb2.RetryInfo(retry_delay=delay)


# --------------------------------------------------------------------------- running it


@asynccontextmanager
async def serving(fake: FakeServer, address: str = "127.0.0.1:0") -> AsyncIterator[FakeServer]:
    """On this event loop."""
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServicer_to_server(fake, server)
    operations_pb2_grpc.add_OperationsServicer_to_server(fake, server)
    health_pb2_grpc.add_HealthServicer_to_server(fake, server)
    port = server.add_insecure_port(address)
    await server.start()
    fake.address = f"127.0.0.1:{port}"
    try:
        yield fake
    finally:
        await server.stop(0)


@contextmanager
def serving_in_thread(fake: FakeServer, address: str = "127.0.0.1:0") -> Iterator[FakeServer]:
    """On an event loop in a thread of its own, for sync clients and subprocesses."""
    started, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with serving(fake, address):
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    if not started.wait(60):
        raise TimeoutError("the fake server did not start")
    try:
        yield fake
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(60)
