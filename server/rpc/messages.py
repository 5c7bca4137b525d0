"""Domain objects as protobuf messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protos.firsttoken.v1 import generation_pb2 as pb
from server.engine import FinishReason, RequestFinished
from server.rpc.opening import Answer
from server.sequence_output import Delta, Likeliest, SequenceOutput
from server.streams import Stream

_REASONS = {
    FinishReason.END: pb.FINISH_REASON_END,
    FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    FinishReason.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}


def delta_message(delta: Delta) -> pb.GenerateResponse:
    """One message for all that waited."""
    response = pb.GenerateResponse()
    # Filled in place, which takes half the time of making a Delta to be copied: this is done for every token.
    message = response.delta
    message.index = delta.sequence
    message.tokens.extend(delta.tokens)
    message.text = delta.text
    if delta.logprobs:
        message.logprobs.extend(_positions(delta.logprobs, delta.top))
    return response


def final_message(stream: Stream, end: RequestFinished) -> pb.GenerateResponse:
    """The last message of a stream that ended well."""
    return pb.GenerateResponse(final=_final(stream, end))


class PromptMessages:
    """What a request wants to hear of its prompt: its text and ids once, log-probabilities as they come."""

    def __init__(self, answer: Answer) -> None:
        self._stream = answer.stream
        self._echo = answer.echo
        self.wanted = answer.echo is not None or answer.stream.request.prompt_logprobs is not None

    def take(self) -> pb.PromptEvent | None:
        """What is new; None where there is nothing."""
        scored = self._stream.take_scored()
        if self._echo is None and not scored:
            return None
        event = pb.PromptEvent()
        if self._echo is not None:
            event.text = self._echo
            event.tokens.extend(self._stream.request.prompt)
            self._echo = None
        if scored:
            event.first_logprob = scored[0].first
            for run in scored:
                event.logprobs.extend(_positions(run.logprobs, run.top))
        return event


class Completions:
    """Gathers a whole answer."""

    def __init__(self, answer: Answer) -> None:
        self._stream = answer.stream
        self._prompt = PromptMessages(answer)
        self._outputs = [pb.Completion(index=output.index) for output in answer.stream.outputs]
        self._texts: list[list[str]] = [[] for _ in self._outputs]

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            output = self._outputs[delta.sequence]
            output.tokens.extend(delta.tokens)
            output.logprobs.extend(_positions(delta.logprobs, delta.top))
            self._texts[delta.sequence].append(delta.text)

    def message(self) -> pb.CompleteResponse:
        """Once the stream has ended well."""
        for output, texts in zip(self._outputs, self._texts, strict=True):
            output.text = "".join(texts)
        end = self._stream.finished
        return pb.CompleteResponse(
            outputs=self._outputs,
            prompt=self._prompt.take(),
            final=None if end is None else _final(self._stream, end),
        )


def _final(stream: Stream, end: RequestFinished) -> pb.Final:
    first = stream.outputs[0]
    sampling = stream.request.sampling
    return pb.Final(
        finish_reason=_REASONS[first.ended or end.reason],
        usage=_usage(stream, end),
        timings=_timings(end),
        stop_string=first.stop_string,
        seed=sampling.seed if sampling.temperature > 0 else None,
        outputs=[
            pb.OutputEnd(
                index=output.index,
                finish_reason=_REASONS[output.ended or end.reason],
                stop_string=output.stop_string,
                completion_tokens=output.completion_tokens,
            )
            for output in stream.outputs
        ],
    )


def _positions(logprobs: Sequence[float], top: Sequence[Likeliest]) -> list[pb.PositionLogprobs]:
    positions = [pb.PositionLogprobs(logprob=logprob) for logprob in logprobs]
    for position, likeliest in zip(positions, top, strict=False):
        position.top.extend(pb.TokenLogprob(token=token, logprob=logprob) for token, logprob in likeliest)
    return positions


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
