"""Domain objects as protobuf messages."""

from __future__ import annotations

from protos.firsttoken.v1 import generation_pb2 as pb
from server.engine import FinishReason, RequestFinished
from server.sequence_output import Delta, SequenceOutput
from server.streams import Stream

_REASONS = {
    FinishReason.END: pb.FINISH_REASON_END,
    FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    FinishReason.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}


def delta_message(delta: Delta) -> pb.GenerateResponse:
    """One message for all that waited."""
    return pb.GenerateResponse(delta=pb.Delta(index=delta.sequence, tokens=delta.tokens, text=delta.text))


def final_message(stream: Stream, end: RequestFinished) -> pb.GenerateResponse:
    """The last message of a stream that ended well."""
    output = stream.outputs[0]
    sampling = stream.request.sampling
    final = pb.Final(
        finish_reason=_REASONS[output.ended or end.reason],
        usage=_usage(stream, end),
        timings=_timings(end),
        stop_string=output.stop_string,
        seed=sampling.seed if sampling.temperature > 0 else None,
    )
    return pb.GenerateResponse(final=final)


def _usage(stream: Stream, end: RequestFinished) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=len(stream.request.prompt),
        cached_tokens=end.cached_tokens,
        completion_tokens=_sum(stream.outputs, "completion_tokens"),
        discarded_tokens=_sum(stream.outputs, "discarded_tokens"),
    )


def _sum(outputs: list[SequenceOutput], field: str) -> int:
    return sum(getattr(output, field) for output in outputs)


def _timings(end: RequestFinished) -> pb.Timings:
    timings = end.timings
    return pb.Timings(
        queued=timings.queued or 0.0,
        prefill=timings.prefill or 0.0,
        first_token=timings.first_token or 0.0,
        total=timings.total,
    )
