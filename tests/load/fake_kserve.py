"""A KServe server with known timing, in a process of its own (package ``inference`` may exist once a process).

Text model "ensemble" and token model "tensorrt_llm"; raw or typed outputs by ``--raw``; ``--fail`` sends an error inside the stream.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import sys
from collections.abc import AsyncIterator

import grpc

from protos.inference import grpc_service_pb2 as wire
from protos.inference import grpc_service_pb2_grpc as wire_grpc

TOKENS = 5


class Fake(wire_grpc.GRPCInferenceServiceServicer):
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options

    async def ServerMetadata(
        self, _request: wire.ServerMetadataRequest, _context: grpc.aio.ServicerContext
    ) -> wire.ServerMetadataResponse:
        return wire.ServerMetadataResponse(name="fake", version="1")

    async def ModelReady(
        self, request: wire.ModelReadyRequest, _context: grpc.aio.ServicerContext
    ) -> wire.ModelReadyResponse:
        return wire.ModelReadyResponse(ready=request.name in {"ensemble", "tensorrt_llm"})

    async def ModelStreamInfer(
        self, requests: AsyncIterator[wire.ModelInferRequest], _context: grpc.aio.ServicerContext
    ) -> AsyncIterator[wire.ModelStreamInferResponse]:
        async for request in requests:
            inputs = {each.name: each.contents for each in request.inputs}
            tokens = request.model_name == "tensorrt_llm"
            count = inputs["request_output_len" if tokens else "max_tokens"].int_contents[0]
            if self.options.fail:
                yield wire.ModelStreamInferResponse(error_message="the model is unwell")
                continue
            for number in range(count):
                await asyncio.sleep(0.005)
                yield self._answer(request, tokens, number)
            last = wire.ModelInferResponse(model_name=request.model_name)
            last.parameters["triton_final_response"].bool_param = True
            yield wire.ModelStreamInferResponse(infer_response=last)

    def _answer(self, request: wire.ModelInferRequest, tokens: bool, number: int) -> wire.ModelStreamInferResponse:
        answer = wire.ModelInferResponse(model_name=request.model_name)
        name, datatype = ("output_ids", "INT32") if tokens else ("text_output", "BYTES")
        tensor = answer.outputs.add(name=name, datatype=datatype, shape=[1])
        word = b" w%d" % number
        if self.options.raw:
            raw = struct.pack("<i", number) if tokens else struct.pack("<I", len(word)) + word
            answer.raw_output_contents.append(raw)
        elif tokens:
            tensor.contents.int_contents.append(number)
        else:
            tensor.contents.bytes_contents.append(word)
        return wire.ModelStreamInferResponse(infer_response=answer)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--fail", action="store_true")
    server = grpc.aio.server()
    wire_grpc.add_GRPCInferenceServiceServicer_to_server(Fake(parser.parse_args()), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)  # noqa: T201 - how the test learns it
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main())
