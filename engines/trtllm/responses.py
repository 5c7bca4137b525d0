"""From the library's responses to the contract's: whose they are, which sequence ended, and when the whole request did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from engines.contract import ExecutorFinish, ExecutorRequest, ExecutorResponse
from engines.trtllm.causes import explain

_FINISHES = {
    "END_ID": ExecutorFinish.END_ID,
    "STOP_WORDS": ExecutorFinish.STOP_WORDS,
    "LENGTH": ExecutorFinish.LENGTH,
    "TIMED_OUT": ExecutorFinish.TIMED_OUT,
    "CANCELLED": ExecutorFinish.CANCELLED,
}


@dataclass(slots=True)
class OpenRequest:
    """A request inside the library, from before it is handed over to its final response. Whoever holds the adapter's lock."""

    request: ExecutorRequest
    block_size: int
    library_id: int | None = None
    """None until the call that hands it over has returned; responses may come before."""
    cancelled: bool = False
    """Its end was asked for before ``library_id`` was known."""
    open: set[int] = field(default_factory=set)
    """Sequences that have not ended."""

    def __post_init__(self) -> None:
        self.open = set(range(self.request.n))

    def translate(self, response: Any) -> list[ExecutorResponse]:  # noqa: ANN401 - the library ships no types
        """What one response of the library says; every sequence's end is said, and the final one comes last."""
        if response.has_error():
            return [ExecutorResponse(request=self.request.request, final=True, error=explain(response.error_msg))]
        result = response.result
        finish = self._finish(result)
        said = self._sequence(result, finish)
        if not result.is_final:
            return [said]
        # A request that ends from outside may end with one response: its other sequences end with it.
        others = sorted(self.open - {said.sequence_index})
        self.open.clear()
        whole = [said, *(ExecutorResponse(self.request.request, index, finish=finish) for index in others)]
        whole[-1] = msgspec.structs.replace(whole[-1], final=True, cached_tokens=said.cached_tokens)
        return whole

    def _sequence(self, result: Any, finish: ExecutorFinish | None) -> ExecutorResponse:  # noqa: ANN401 - as above
        index = int(result.sequence_index)
        tokens = tuple(result.output_token_ids[0]) if result.output_token_ids else ()
        if finish is ExecutorFinish.STOP_WORDS and tokens and tokens[-1] in self.request.end_ids:
            finish = ExecutorFinish.END_ID
        elif finish is ExecutorFinish.END_ID and not self.request.end_ids and self.request.stop_ids:
            finish = ExecutorFinish.STOP_WORDS
        if finish is not None:
            self.open.discard(index)
        return ExecutorResponse(
            request=self.request.request,
            sequence_index=index,
            tokens=tokens,
            finish=finish,
            logprobs=self._logprobs(result, len(tokens)),
            cached_tokens=self._cached_tokens(result),
        )

    def _finish(self, result: Any) -> ExecutorFinish | None:  # noqa: ANN401 - as above
        """None while the sequence goes on."""
        if not (result.is_sequence_final or result.is_final):
            return None
        name = str(getattr(result.finish_reasons[0], "name", "")) if result.finish_reasons else ""
        return _FINISHES.get(name, ExecutorFinish.CANCELLED if self.cancelled else None)

    def _logprobs(self, result: Any, count: int) -> tuple[float, ...]:  # noqa: ANN401 - as above
        """Releases differ in whether the list holds the new ones or all so far; the last ones are the new ones in both."""
        if self.request.sampling.logprobs is None or not result.log_probs or not count:
            return ()
        return tuple(result.log_probs[0][-count:])

    def _cached_tokens(self, result: Any) -> int | None:  # noqa: ANN401 - as above
        metrics = result.request_perf_metrics
        if metrics is None:
            return None
        reused = int(metrics.kv_cache_metrics.num_reused_blocks) * self.block_size
        return min(reused, len(self.request.tokens) - 1)
