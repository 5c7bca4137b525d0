"""A gRPC server with known timing, in a process of its own: ``python -m tests.load.fake_server [--tokens-per-message N] …``.

Every stream's first token comes ``--ttft`` seconds after its request was read and each further message ``--gap`` seconds after
the one before, from one timer wheel, as an engine's steps would. It prints its port and serves until its standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator

import grpc

from protos.firsttoken.v1 import generation_pb2 as generation
from protos.firsttoken.v1 import generation_pb2_grpc as generation_grpc
from protos.firsttoken.v1 import operations_pb2 as operations
from protos.firsttoken.v1 import operations_pb2_grpc as operations_grpc


class Paced(generation_grpc.GenerationServicer):
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.seats = asyncio.Semaphore(options.seats)
        self.running = self.waiting = 0

    async def Generate(
        self, request: generation.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation.GenerateResponse]:
        options = self.options
        if request.max_tokens == options.refuse_length:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room: 100 % full")
        self.waiting += 1
        try:
            await self.seats.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            async for response in self._stream(request):
                yield response
        finally:
            self.running -= 1
            self.seats.release()

    async def _stream(self, request: generation.GenerateRequest) -> AsyncIterator[generation.GenerateResponse]:
        options, loop = self.options, asyncio.get_running_loop()
        due = loop.time() + options.ttft
        sent = 0
        while sent < request.max_tokens:
            if (rest := due - loop.time()) > 0:
                await asyncio.sleep(rest)
            count = min(options.tokens_per_message, request.max_tokens - sent)
            sent += count
            yield generation.GenerateResponse(delta=generation.Delta(tokens=[7] * count, text="x" * count))
            due += options.gap
        usage = generation.Usage(
            prompt_tokens=len(request.prompt.token_ids.ids), cached_tokens=16, completion_tokens=sent
        )
        timings = generation.Timings(queued=0.001, prefill=options.ttft)
        yield generation.GenerateResponse(
            final=generation.Final(finish_reason=generation.FINISH_REASON_LENGTH, usage=usage, timings=timings)
        )


class Facts(operations_grpc.OperationsServicer):
    def __init__(self, paced: Paced) -> None:
        self.paced = paced

    async def GetServerInfo(
        self, _request: operations.GetServerInfoRequest, _context: grpc.aio.ServicerContext
    ) -> operations.GetServerInfoResponse:
        limits = operations.Limits(
            vocab_size=1000, max_context=8192, max_sequences=self.paced.options.seats, block_size=16
        )
        return operations.GetServerInfoResponse(model="paced", engine="fake", limits=limits)

    async def GetLoad(
        self, _request: operations.GetLoadRequest, _context: grpc.aio.ServicerContext
    ) -> operations.GetLoadResponse:
        waiting = operations.WaitingByClass(interactive=self.paced.waiting)
        return operations.GetLoadResponse(ready=True, running=self.paced.running, waiting=waiting, kv_utilisation=0.5)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ttft", type=float, default=0.05)
    parser.add_argument("--gap", type=float, default=0.01)
    parser.add_argument("--tokens-per-message", type=int, default=1)
    parser.add_argument("--seats", type=int, default=100_000)
    parser.add_argument("--refuse-length", type=int, default=-1)
    parser.add_argument("--max-streams", type=int, default=0)
    return parser.parse_args()


async def main() -> None:
    options = parse()
    server = grpc.aio.server(
        options=[("grpc.max_concurrent_streams", options.max_streams)] if options.max_streams else []
    )
    paced = Paced(options)
    generation_grpc.add_GenerationServicer_to_server(paced, server)
    operations_grpc.add_OperationsServicer_to_server(Facts(paced), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)  # noqa: T201 - how the test learns it
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main())
