"""The request executors that must keep the contract, and a client that collects what they answer."""

from __future__ import annotations

import random
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engines.contract import ExecutorFinish, ExecutorRequest, ExecutorResponse, RequestExecutor
from engines.sampling.params import SamplingParams
from engines.simulated.clock import Clock, RealClock, VirtualClock
from engines.simulated.cost import CostModel
from engines.simulated.executor import SimulatedExecutor
from engines.simulated.language import Language
from tests.trtllm.rig import conformance_executor

END_ID = 2
PATIENCE = 30.0
"""Seconds after which a test gives up on an executor."""


@dataclass(frozen=True)
class ExecutorCase:
    """``make(blocks, batch)``: an executor with so many KV blocks and seats."""

    name: str
    make: Callable[[int, int], RequestExecutor]

    def __str__(self) -> str:
        return self.name


def _simulated(clock: Callable[[], Clock]) -> Callable[[int, int], RequestExecutor]:
    def make(blocks: int, batch: int) -> RequestExecutor:
        return SimulatedExecutor(
            Language(300, end_ids=(END_ID,), end_rate=0.02, seed=3),
            blocks=blocks,
            block_size=8,
            max_batch_size=batch,
            max_num_tokens=max(batch, 64),
            max_context=256,
            cost=CostModel(fixed=4e-4, per_new_token=1e-6),
            clock=clock(),
        )

    return make


def executor_cases() -> list[ExecutorCase]:
    return [
        ExecutorCase("simulated-virtual", _simulated(VirtualClock)),
        ExecutorCase("simulated-real", _simulated(RealClock)),
        ExecutorCase("trtllm-over-contract-fake", conformance_executor),
    ]


def make_text(seed: int, length: int) -> list[int]:
    draw = random.Random(seed)  # noqa: S311 - the same texts every run
    return [draw.randrange(3, 300) for _ in range(length)]


@dataclass
class Answers:
    """Everything that came for one request."""

    responses: list[ExecutorResponse] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return any(response.final for response in self.responses)

    def tokens(self, index: int = 0) -> list[int]:
        return [token for r in self.responses if r.sequence_index == index for token in r.tokens]

    def finish(self, index: int = 0) -> ExecutorFinish | None:
        (finish,) = [r.finish for r in self.responses if r.sequence_index == index and r.finish is not None]
        return finish

    @property
    def cached_tokens(self) -> int | None:
        """As last told: an executor may tell with the final response only."""
        return next((r.cached_tokens for r in reversed(self.responses) if r.cached_tokens is not None), None)


class Client:
    """Hands over requests and sorts the responses; fails a test rather than wait for ever."""

    def __init__(self, executor: RequestExecutor) -> None:
        self.executor = executor
        self.answers: defaultdict[int, Answers] = defaultdict(Answers)
        self.order: list[ExecutorResponse] = []
        self._last = 0

    def request(
        self,
        prompt: Sequence[int],
        max_tokens: int = 8,
        *,
        end_ids: tuple[int, ...] = (),
        stop_ids: tuple[int, ...] = (),
        n: int = 1,
        priority: float = 0.5,
        allotted_ms: int | None = None,
        salt: int | None = None,
        sampling: SamplingParams | None = None,
    ) -> ExecutorRequest:
        self._last += 1
        return ExecutorRequest(
            request=self._last,
            tokens=array("i", prompt),
            max_tokens=max_tokens,
            sampling=sampling or SamplingParams(),
            end_ids=end_ids,
            stop_ids=stop_ids,
            n=n,
            priority=priority,
            allotted_ms=allotted_ms,
            salt=salt,
        )

    def poll(self, timeout: float = 1.0) -> list[ExecutorResponse]:
        responses = self.executor.await_responses(timeout)
        for response in responses:
            answers = self.answers[response.request]
            assert not answers.over, f"{response} came after the final response"
            answers.responses.append(response)
        self.order += responses
        return responses

    def until(self, condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up, f"still waiting; got {self.order[-5:]}"
            self.poll()

    def finish(self, *requests: ExecutorRequest) -> list[Answers]:
        self.until(lambda: all(self.answers[request.request].over for request in requests))
        return [self.answers[request.request] for request in requests]

    def run(self, *requests: ExecutorRequest) -> list[Answers]:
        self.executor.enqueue(requests)
        return self.finish(*requests)


Make = Callable[[int, int], Client]
"""A client of a new executor with so many KV blocks and seats; closed when the test is over."""
