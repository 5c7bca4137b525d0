"""How soon a request is refused while the engine is busy: a real server, real sockets, 200 requests a second for ten seconds each way.

Every seat streams and as many wait as may. Then, by a clock that waits for nobody: requests whose deadline the forecast says they
would miss, refused after their prompt was tokenized; and, once the room is full, any request. The engine is the default one, on this
machine's own cores, which it shares with server and client.
"""

from __future__ import annotations

import asyncio
import time

import grpc
from google.protobuf.duration_pb2 import Duration

from benchmarks.figure import Figure, at_least, at_most
from benchmarks.served import serving
from loadtest.statistics import spread
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import generation_pb2_grpc as rpc
from tests.engines_built import default_engine

RATE, SECONDS = 200, 10.0
SEATS, ROOM = 4, 8
PROMPT = "Say what it takes to be told no quickly, and why that is kinder than a long wait. " * 8
LIMIT = 10e-3
FLAGS = (
    *("--scheduler.max_sequences", str(SEATS)),
    *("--admission.max_waiting_requests", str(ROOM)),
    *("--telemetry.log_requests", "false", "--telemetry.log_level", "error"),
)


def figures() -> list[Figure]:
    return _measure("the default engine", str(default_engine()))


def _measure(name: str, engine: str) -> list[Figure]:
    with serving(engine, *FLAGS) as server:
        found = asyncio.run(_refusals(server.address))
    figures = []
    for reason, (seconds, rate) in found.items():
        label = f"refused for {reason}, {name} busy"
        figures.append(at_least(f"{label}: refusals a second", 0.98 * RATE, rate, ""))
        measured = spread(seconds)
        figures.append(at_most(f"{label}: p99", 1e3 * LIMIT, 1e3 * measured.p99 if measured else float("inf"), "ms"))
    return figures


async def _refusals(address: str) -> dict[str, tuple[list[float], float]]:
    """By reason: the seconds that each refusal took, and how many came a second."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc.GenerationStub(channel)
        busy = [asyncio.create_task(_stream(stub)) for _ in range(SEATS + ROOM - 1)]
        try:
            await asyncio.sleep(2.0)
            late = pb.GenerateRequest(prompt=pb.Prompt(text=PROMPT), max_tokens=16, ttft_deadline=Duration(nanos=10**6))
            found = {"its deadline": await _flood(stub, late)}
            busy.append(asyncio.create_task(_stream(stub)))
            await asyncio.sleep(0.5)
            found["a full room"] = await _flood(stub, pb.GenerateRequest(prompt=pb.Prompt(text=PROMPT), max_tokens=16))
        finally:
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
    return found


async def _stream(stub: rpc.GenerationStub) -> None:
    """Holds a seat, or waits for one, for as long as the server lets it."""
    while True:
        # Whoever ends on its own gives its seat up, and for a moment there is room.
        request = pb.GenerateRequest(prompt=pb.Prompt(text=PROMPT), max_tokens=4096, stop=pb.Stop(ignore_end=True))
        async for _ in stub.Generate(request):
            pass


async def _flood(stub: rpc.GenerationStub, request: pb.GenerateRequest) -> tuple[list[float], float]:
    began = time.perf_counter()
    tasks = []
    for number in range(int(RATE * SECONDS)):
        await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        tasks.append(asyncio.create_task(_refused(stub, request)))
    seconds = await asyncio.gather(*tasks)
    return list(seconds), len(seconds) / (time.perf_counter() - began)


async def _refused(stub: rpc.GenerationStub, request: pb.GenerateRequest) -> float:
    """Seconds until the refusal. Raises RuntimeError where it was none."""
    started = time.perf_counter()
    try:
        async for _ in stub.Generate(request):
            break
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return time.perf_counter() - started
        raise
    raise RuntimeError("a request was let in that had to be refused")
