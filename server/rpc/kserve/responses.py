"""What a stream gives, as responses of this wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protos.inference import grpc_service_pb2 as wire
from server.engine import FinishReason, RequestFinished
from server.rpc.kserve.models import VERSION
from server.rpc.kserve.tensors import add_output
from server.rpc.kserve.translate import Translated
from server.rpc.opening import Answer
from server.sequence_output import Delta

FINAL = "triton_final_response"
_NANOSECONDS = 10**9


def empty_response(asked: Translated, request_id: str, *, final: bool) -> wire.ModelInferResponse:
    """Without outputs."""
    response = wire.ModelInferResponse(model_name=asked.model_name, model_version=VERSION, id=request_id)
    response.parameters[FINAL].bool_param = final
    return response


class Responses:
    """Makes the responses of one request. ``id`` is the client's own, empty where it gave none."""

    def __init__(self, asked: Translated, answer: Answer, *, block_size: int) -> None:
        self._asked = asked
        self._answer = answer
        self._block_size = block_size
        self._id = asked.message.request_id

    def part(self, delta: Delta, *, last: bool) -> wire.ModelInferResponse:
        """New output of one sequence. ``last``: the request's last, which carries what is known at the end."""
        response = self._begin(final=last and not self._asked.parameters.empty_final)
        self._add_output(response, [delta], prompt=False)
        index = delta.sequence
        self._add_facts(response, [index], last=last)
        return response

    def whole(self, deltas: Sequence[Delta]) -> wire.ModelInferResponse:
        """All outputs, by index, with the prompt before each where the client wants it."""
        response = self._begin(final=not self._asked.parameters.empty_final)
        self._add_output(response, deltas, prompt=self._asked.include_input)
        self._add_facts(response, [delta.sequence for delta in deltas], last=True)
        return response

    def final(self, reason: str = "") -> wire.ModelInferResponse:
        """The end, where no output carries it. ``reason`` in place of the stream's own, which a cancelled one has not."""
        response = empty_response(self._asked, self._id, final=True)
        response.parameters["finish_reason"].string_param = (
            reason or _name(self._answer.stream.outputs[0].ended).decode()
        )
        if not self._asked.parameters.empty_final:
            self._add_output(response, [Delta(0, [], "")], prompt=False)
        return response

    # ------------------------------------------------------------------ parts

    def _begin(self, *, final: bool) -> wire.ModelInferResponse:
        return empty_response(self._asked, self._id, final=final)

    def _add_output(self, response: wire.ModelInferResponse, deltas: Sequence[Delta], *, prompt: bool) -> None:
        if self._asked.kind == "text":
            before = (self._answer.echo or "") if prompt else ""
            texts = [(before + delta.text).encode() for delta in deltas]
            self._add(response, "text_output", "BYTES", [len(texts)], texts)
        else:
            ids = [[*(self._answer.stream.request.prompt if prompt else ()), *delta.tokens] for delta in deltas]
            longest = max(map(len, ids))
            self._add(response, "output_ids", "INT32", self._shape(len(ids), longest), _padded(ids, longest, 0))
            self._add(response, "sequence_length", "INT32", self._shape(len(ids)), [len(run) for run in ids])
        if self._answer.stream.request.sampling.logprobs is not None:
            self._add_logprobs(response, deltas)

    def _add_logprobs(self, response: wire.ModelInferResponse, deltas: Sequence[Delta]) -> None:
        logprobs = [list(delta.logprobs) for delta in deltas]
        longest = max(map(len, logprobs))
        sums = [sum(run) for run in logprobs]
        self._add(response, "cum_log_probs", "FP32", self._shape(len(sums)), sums)
        shape = self._shape(len(logprobs), longest)
        self._add(response, "output_log_probs", "FP32", shape, _padded(logprobs, longest, 0.0))

    def _add_facts(self, response: wire.ModelInferResponse, indices: Sequence[int], *, last: bool) -> None:
        if self._answer.stream.request.n > 1 or self._asked.requested:
            self._add(response, "sequence_index", "INT32", [len(indices)], indices)
            self._add(response, "batch_index", "INT32", [1], [0])
        end, outputs = self._answer.stream.finished, self._answer.stream.outputs
        ends = [outputs[index].ended for index in indices]
        if None not in ends:
            self._add(response, "finish_reason", "BYTES", [len(indices)], [_name(reason) for reason in ends])
        if not last or end is None:
            return
        if self._asked.facts or self._asked.requested:
            for name, value in self._blocks(end):
                self._add(response, name, "INT32", [1], [value])
            for name, value in self._times(end):
                self._add(response, name, "INT64", [1], [value])

    def _blocks(self, end: RequestFinished) -> Iterable[tuple[str, int]]:
        request, size = self._answer.stream.request, self._block_size
        shared = len(request.prompt) // size
        own = (len(request.prompt) + output.completion_tokens for output in self._answer.stream.outputs)
        total = shared + sum(max(0, -(-tokens // size) - shared) for tokens in own)
        reused = end.cached_tokens // size
        yield "kv_cache_reused_blocks", reused
        yield "kv_cache_alloc_new_blocks", total - reused
        yield "kv_cache_alloc_total_blocks", total

    def _times(self, end: RequestFinished) -> Iterable[tuple[str, int]]:
        """On the server's monotonic clock."""
        arrival, timings = self._answer.stream.request.arrival, end.timings
        for name, seconds in (
            ("arrival_time_ns", 0.0),
            ("first_scheduled_time_ns", timings.queued),
            ("first_token_time_ns", timings.first_token),
            ("last_token_time_ns", timings.total),
        ):
            if seconds is not None:
                yield name, int((arrival + seconds) * _NANOSECONDS)

    def _shape(self, *dimensions: int) -> list[int]:
        return [1, *dimensions] if self._asked.batched else list(dimensions)

    def _add(
        self,
        response: wire.ModelInferResponse,
        name: str,
        datatype: str,
        shape: Sequence[int],
        values: Sequence[object],
    ) -> None:
        if not self._asked.requested or name in self._asked.requested:
            add_output(response, name, datatype, shape, values)


def _name(reason: FinishReason | None) -> bytes:
    """A request of zero tokens ends with its output's end unsaid: for its length."""
    return (reason or FinishReason.LENGTH).value.encode()


def _padded(rows: Iterable[Sequence[float]], length: int, filler: float) -> list[float]:
    return [value for row in rows for value in (*row, *([filler] * (length - len(row))))]
