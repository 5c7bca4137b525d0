"""The Open Inference Protocol as TensorRT-LLM's users speak it: ModelStreamInfer with text or token tensors."""

from __future__ import annotations

import struct

from loadtest.errors import TargetError, WorkloadError
from loadtest.http2.grpc_call import frame_message
from loadtest.record import OK
from loadtest.transports.base import Ask, Call, LoadSample, Measurement, Target, TargetFacts
from loadtest.transports.grpc_wire import GrpcWire
from protos.inference import grpc_service_pb2 as wire

INFER = "/inference.GRPCInferenceService/ModelStreamInfer"
SERVER_METADATA = "/inference.GRPCInferenceService/ServerMetadata"
MODEL_READY = "/inference.GRPCInferenceService/ModelReady"
TEXT_MODEL = "ensemble"
TOKEN_MODEL = "tensorrt_llm"
STREAM_ERROR = "STREAM_ERROR"
"""The status of a request whose error came inside an OK stream, as this protocol has it."""
_PRIORITIES = {"interactive": 1, "standard": 2, "batch": 3}
_LENGTH = struct.Struct("<I")


class KserveTransport:
    """Endpoint "text" (the default) asks the ensemble's tensors, "tokens" those of the token-level model."""

    def __init__(self, target: Target) -> None:
        if target.endpoint not in {"", "text", "tokens"}:
            raise TargetError(f"--endpoint: kserve has text and tokens, not {target.endpoint!r}")
        self.takes_ids = target.endpoint == "tokens"
        self._wire = GrpcWire(target)
        self._model = target.model or (TOKEN_MODEL if self.takes_ids else TEXT_MODEL)

    async def open(self) -> TargetFacts:
        await self._wire.open()
        metadata = wire.ServerMetadataResponse.FromString(await self._wire.unary(SERVER_METADATA, b""))
        asked = wire.ModelReadyRequest(name=self._model).SerializeToString()
        if not wire.ModelReadyResponse.FromString(await self._wire.unary(MODEL_READY, asked)).ready:
            raise TargetError(f"model {self._model!r} is not ready: say --model")
        return TargetFacts("kserve", self._model, f"{metadata.name} {metadata.version}".strip())

    def encode(self, ask: Ask) -> bytes:
        if ask.salt:
            raise WorkloadError("--tenants: this protocol carries no cache salt")
        request = wire.ModelInferRequest(model_name=self._model)
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        request.parameters["priority"].uint64_param = _PRIORITIES[ask.priority]
        if ask.ttft_deadline is not None:
            request.parameters["timeout"].uint64_param = round(ask.ttft_deadline * 1e6)
        if ask.ids is not None:
            _add(request, "input_ids", "INT32", [1, len(ask.ids)]).int_contents.extend(ask.ids.tolist())
            _add(request, "input_lengths", "INT32", [1, 1]).int_contents.append(len(ask.ids))
            _add(request, "request_output_len", "INT32", [1, 1]).int_contents.append(ask.max_tokens)
            _add(request, "streaming", "BOOL", [1, 1]).bool_contents.append(True)
        else:
            _add(request, "text_input", "BYTES", [1, 1]).bytes_contents.append((ask.text or "").encode())
            _add(request, "max_tokens", "INT32", [1, 1]).int_contents.append(ask.max_tokens)
            _add(request, "stream", "BOOL", [1, 1]).bool_contents.append(True)
        return frame_message(request.SerializeToString())

    async def start(self, ask: Ask, body: bytes, measurement: Measurement) -> Call:
        failure = ""

        def on_message(message: bytes, now: float) -> None:
            nonlocal failure
            response = wire.ModelStreamInferResponse.FromString(message)
            failure = failure or response.error_message
            if self.takes_ids:
                if ids := _ids(response.infer_response):
                    measurement.on_content(len(ids), now, ids=ids)
            elif text := _text(response.infer_response):
                measurement.on_content(1, now, text=text)

        def on_status(status: str, detail: str, now: float) -> None:
            if status == OK and failure:
                status, detail = STREAM_ERROR, failure
            measurement.on_over(status, detail, now)

        return await self._wire.start(INFER, body, on_message, on_status, deadline=ask.deadline, stalls=ask.stalls)

    async def load(self) -> LoadSample | None:
        return None

    async def close(self) -> None:
        self._wire.close()


def _add(request: wire.ModelInferRequest, name: str, datatype: str, shape: list[int]) -> wire.InferTensorContents:
    return request.inputs.add(name=name, datatype=datatype, shape=shape).contents


def _output(response: wire.ModelInferResponse, name: str) -> tuple[wire.InferTensorContents, bytes] | None:
    for place, tensor in enumerate(response.outputs):
        if tensor.name == name:
            raw = response.raw_output_contents
            return tensor.contents, raw[place] if place < len(raw) else b""
    return None


def _text(response: wire.ModelInferResponse) -> str:
    """All elements of text_output, whichever way they are carried."""
    found = _output(response, "text_output")
    if found is None:
        return ""
    contents, raw = found
    parts = list(contents.bytes_contents)
    position = 0
    while position + _LENGTH.size <= len(raw):
        (size,) = _LENGTH.unpack_from(raw, position)
        position += _LENGTH.size + size
        parts.append(raw[position - size : position])
    return b"".join(parts).decode("utf-8", "replace")


def _ids(response: wire.ModelInferResponse) -> list[int]:
    found = _output(response, "output_ids")
    if found is None:
        return []
    contents, raw = found
    return list(contents.int_contents) or list(struct.unpack(f"<{len(raw) // 4}i", raw[: len(raw) // 4 * 4]))
