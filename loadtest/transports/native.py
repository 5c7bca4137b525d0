"""firsttoken's own wire: firsttoken.v1.Generation over gRPC."""

from __future__ import annotations

from datetime import timedelta

from loadtest.errors import TargetError
from loadtest.http2.grpc_call import frame_message
from loadtest.record import Usage
from loadtest.transports.base import Ask, Call, LoadSample, Measurement, Target, TargetFacts
from loadtest.transports.grpc_wire import GrpcWire
from protos.firsttoken.v1 import generation_pb2 as generation
from protos.firsttoken.v1 import operations_pb2 as operations

GENERATE = "/firsttoken.v1.Generation/Generate"
SERVER_INFO = "/firsttoken.v1.Operations/GetServerInfo"
GET_LOAD = "/firsttoken.v1.Operations/GetLoad"

_PRIORITIES = {
    "interactive": generation.PRIORITY_INTERACTIVE,
    "standard": generation.PRIORITY_STANDARD,
    "batch": generation.PRIORITY_BATCH,
}


class NativeTransport:
    takes_ids = True

    def __init__(self, target: Target) -> None:
        self._wire = GrpcWire(target)
        self._model = target.model

    async def open(self) -> TargetFacts:
        await self._wire.open()
        answer = await self._wire.unary(SERVER_INFO, b"")
        info = operations.GetServerInfoResponse.FromString(answer)
        return TargetFacts(
            "native",
            info.model,
            info.engine,
            info.limits.vocab_size or None,
            info.limits.max_context or None,
            info.limits.max_sequences or None,
            info.limits.block_size or None,
        )

    def encode(self, ask: Ask) -> bytes:
        request = generation.GenerateRequest(
            max_tokens=ask.max_tokens,
            priority=_PRIORITIES[ask.priority],
            cache_salt=ask.salt,
            model=self._model,
        )
        if ask.ignore_end:
            request.stop.ignore_end = True
        if ask.ids is not None:
            request.prompt.token_ids.ids.extend(ask.ids.tolist())
        else:
            request.prompt.text = ask.text or ""
        if ask.ttft_deadline is not None:
            request.ttft_deadline.FromTimedelta(timedelta(seconds=ask.ttft_deadline))
        return frame_message(request.SerializeToString())

    async def start(self, ask: Ask, body: bytes, measurement: Measurement) -> Call:
        parse = generation.GenerateResponse.FromString

        def on_message(message: bytes, now: float) -> None:
            response = parse(message)
            delta = response.delta
            if count := len(delta.tokens):
                measurement.on_content(count, now, ids=list(delta.tokens))
            elif delta.text:
                measurement.on_content(0, now, text=delta.text)
            elif response.HasField("final"):
                measurement.on_usage(_usage(response.final))

        return await self._wire.start(
            GENERATE, body, on_message, measurement.on_over, deadline=ask.deadline, stalls=ask.stalls
        )

    async def load(self) -> LoadSample | None:
        try:
            load = operations.GetLoadResponse.FromString(await self._wire.unary(GET_LOAD, b""))
        except TargetError:
            return None
        waiting = load.waiting
        return LoadSample(
            load.running,
            waiting.interactive + waiting.standard + waiting.batch,
            load.waiting_tokens,
            load.kv_utilisation,
            load.kv_cached,
        )

    async def close(self) -> None:
        self._wire.close()


def _usage(final: generation.Final) -> Usage:
    usage, timings = final.usage, final.timings
    return Usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, timings.queued, timings.prefill)
