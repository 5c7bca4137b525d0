"""What gRPC alone costs: the messages of a token stream, written each 10 ms to every open call, and nothing else.

``python -m benchmarks.bare_stream`` prints its port and serves firsttoken.v1.Generation/Generate until its standard input closes.
"""

from __future__ import annotations

import asyncio
import sys

import grpc

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import generation_pb2_grpc as rpc
from server.rpc.context import CallContext

STEP_SECONDS = 0.01


class Bare(rpc.GenerationServicer):
    """Every stream gets one message a tick, all in the same turn of the loop, as after an engine's step."""

    def __init__(self) -> None:
        self._tick: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STEP_SECONDS)
            tick, self._tick = self._tick, asyncio.get_running_loop().create_future()
            tick.set_result(None)

    async def Generate(self, request: pb.GenerateRequest, context: CallContext) -> None:  # noqa: N802 - the protocol's name
        for number in range(request.max_tokens):
            await self._tick
            await context.write(pb.GenerateResponse(delta=pb.Delta(tokens=[number % 256], text="x")))
        await context.write(pb.GenerateResponse(final=pb.Final()))


async def main() -> None:
    server = grpc.aio.server()
    bare = Bare()
    rpc.add_GenerationServicer_to_server(bare, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    ticking = asyncio.create_task(bare.run())
    await asyncio.to_thread(sys.stdin.read)
    ticking.cancel()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main())
