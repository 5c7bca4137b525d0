"""OpenVINO GenAI's continuous batching behind the least gRPC server that streams: the peer that uses the same kernels as ours.

Runs in the peer's environment: ``python genai_server.py MODEL_DIR PORT THREADS KV_PRECISION ACTIVATIONS``.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import openvino
import openvino_genai

from protos.firsttoken.v1 import generation_pb2 as generation
from protos.firsttoken.v1 import generation_pb2_grpc as generation_grpc
from protos.firsttoken.v1 import operations_pb2 as operations
from protos.firsttoken.v1 import operations_pb2_grpc as operations_grpc

CACHE_GIGABYTES = 1
STEP_TOKENS = 512
CONTEXT = 2048
END_ID = 2


class Pipeline(threading.Thread):
    """One thread owns the pipeline: takes what came, runs a step, hands out what it made."""

    def __init__(self, directory: str, properties: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(daemon=True)
        settings = openvino_genai.SchedulerConfig()
        settings.cache_size = CACHE_GIGABYTES
        settings.max_num_batched_tokens = STEP_TOKENS
        settings.max_num_seqs = 64
        settings.dynamic_split_fuse = True
        settings.enable_prefix_caching = True
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(directory, settings, "CPU", properties)
        self._loop = loop
        self._inbox: queue.Queue[tuple[list[int], int, asyncio.Queue[list[int] | None]]] = queue.Queue()
        self._running: dict[int, tuple[Any, asyncio.Queue[list[int] | None]]] = {}
        self._next = 0

    def submit(self, ids: list[int], max_tokens: int) -> asyncio.Queue[list[int] | None]:
        outbox: asyncio.Queue[list[int] | None] = asyncio.Queue()
        self._inbox.put((ids, max_tokens, outbox))
        return outbox

    def run(self) -> None:
        try:
            self._loop_forever()
        finally:
            # Without this thread nobody would ever be answered.
            os._exit(1)

    def _loop_forever(self) -> None:
        while True:
            self._take(block=not self._running)
            while not self._inbox.empty():
                self._take(block=False)
            self._pipeline.step()
            self._loop.call_soon_threadsafe(deliver, self._collect())

    def _take(self, *, block: bool) -> None:
        try:
            ids, max_tokens, outbox = self._inbox.get(block=block)
        except queue.Empty:
            return
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.set_eos_token_id(END_ID)
        config.ignore_eos = True
        config.do_sample = False
        tensor = openvino.Tensor(np.array([ids], np.int64))
        self._running[self._next] = self._pipeline.add_request(self._next, tensor, config), outbox
        self._next += 1

    def _collect(self) -> list[tuple[asyncio.Queue[list[int] | None], list[int], bool]]:
        made = []
        for number, (handle, outbox) in list(self._running.items()):
            ids: list[int] = []
            while handle.can_read():
                for output in handle.read().values():
                    ids += list(output.generated_ids)
            over = handle.get_status() != openvino_genai.GenerationStatus.RUNNING
            if over:
                del self._running[number]
            if ids or over:
                made.append((outbox, ids, over))
        return made


def deliver(made: list[tuple[asyncio.Queue[list[int] | None], list[int], bool]]) -> None:
    for outbox, ids, over in made:
        if ids:
            outbox.put_nowait(ids)
        if over:
            outbox.put_nowait(None)


class Generation(generation_grpc.GenerationServicer):
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def Generate(  # noqa: N802 - the protocol's name
        self, request: generation.GenerateRequest, _context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation.GenerateResponse]:
        ids = list(request.prompt.token_ids.ids)
        outbox = self._pipeline.submit(ids, request.max_tokens)
        count = 0
        while (tokens := await outbox.get()) is not None:
            count += len(tokens)
            yield generation.GenerateResponse(delta=generation.Delta(tokens=tokens))
        usage = generation.Usage(prompt_tokens=len(ids), completion_tokens=count)
        yield generation.GenerateResponse(final=generation.Final(usage=usage))


class Facts(operations_grpc.OperationsServicer):
    async def GetServerInfo(  # noqa: N802 - the protocol's name
        self, _request: operations.GetServerInfoRequest, _context: grpc.aio.ServicerContext
    ) -> operations.GetServerInfoResponse:
        limits = operations.Limits(vocab_size=49152, max_context=CONTEXT, max_sequences=64)
        return operations.GetServerInfoResponse(model="smollm2", engine="openvino-genai", limits=limits)


async def main() -> None:
    directory, port, threads, kv_precision, activations = sys.argv[1:6]
    properties = {
        "INFERENCE_NUM_THREADS": int(threads),
        "INFERENCE_PRECISION_HINT": activations,
        "KV_CACHE_PRECISION": kv_precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    pipeline = Pipeline(directory, properties, asyncio.get_running_loop())
    pipeline.start()
    server = grpc.aio.server()
    generation_grpc.add_GenerationServicer_to_server(Generation(pipeline), server)
    operations_grpc.add_OperationsServicer_to_server(Facts(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
