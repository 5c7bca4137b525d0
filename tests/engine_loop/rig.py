"""A step engine over the simulated runner, its thread, and everything it delivered."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from engines.sampling.params import SamplingParams
from engines.simulated.clock import RealClock
from engines.simulated.cost import PROFILES, CostModel
from engines.simulated.faults import Faults
from engines.simulated.history import History
from engines.simulated.language import Language
from engines.simulated.step_runner import SimulatedStepRunner
from server.engine import (
    EngineInfo,
    Event,
    GenerationRequest,
    PriorityClass,
    RequestFinished,
    SequenceFinished,
    TokensEvent,
)
from server.engine_loop import StepEngine
from server.scheduling.admission import Admission
from server.scheduling.batcher import Batcher
from server.scheduling.config import BatcherConfig

BLOCK = 4
LANGUAGE = Language(500, end_ids=(2,), end_rate=0.0, seed=3)
PATIENCE = 20.0


class Rig:
    """``deliver`` is called on the engine thread; what it got is read after waiting for an end."""

    def __init__(
        self,
        *,
        cost: CostModel = PROFILES["instant"],
        faults: Faults | None = None,
        blocks: int = 256,
        admission: Admission | None = None,
    ) -> None:
        self.runner = SimulatedStepRunner(
            LANGUAGE,
            blocks=blocks,
            block_size=BLOCK,
            max_rows=64,
            max_step_tokens=256,
            max_context=128,
            cost=cost,
            clock=RealClock(),
            faults=faults,
            poison=True,
            paranoid=True,
        )
        self.batcher = Batcher(self.runner.limits, fingerprint="rig", config=BatcherConfig(step_tokens=128))
        limits = self.runner.limits
        info = EngineInfo(
            kind="simulated",
            model="rig",
            fingerprint="rig",
            vocab_size=limits.vocab_size,
            end_ids=(2,),
            max_context=limits.max_context,
            block_size=limits.block_size,
            block_count=limits.block_count,
            bytes_per_block=limits.bytes_per_block,
            max_sequences=64,
            max_step_tokens=256,
            capabilities=self.runner.capabilities,
        )
        admission = admission or Admission(max_waiting_requests=1000, max_waiting_tokens=100_000)
        self.engine = StepEngine(self.runner, self.batcher, admission, info)
        self.batches: list[list[Event]] = []
        self.output: defaultdict[int, list[int]] = defaultdict(list)
        self.ends: defaultdict[int, list[RequestFinished]] = defaultdict(list)
        self.sequence_ends: defaultdict[int, list[SequenceFinished]] = defaultdict(list)
        self.threads: set[str] = set()
        self._changed = threading.Condition()

    def start(self) -> Rig:
        self.engine.start(self.deliver)
        return self

    def deliver(self, events: list[Event]) -> None:
        with self._changed:
            self.threads.add(threading.current_thread().name)
            self.batches.append(events)
            for event in events:
                if isinstance(event, TokensEvent):
                    self.output[event.request].extend(event.tokens)
                elif isinstance(event, SequenceFinished):
                    self.sequence_ends[event.request].append(event)
                elif isinstance(event, RequestFinished):
                    self.ends[event.request].append(event)
            self._changed.notify_all()

    def wait_end(self, *requests: int) -> None:
        self._wait(lambda: all(self.ends[request] for request in requests), f"the end of {requests}")

    def wait_tokens(self, request: int, count: int) -> None:
        self._wait(lambda: len(self.output[request]) >= count, f"{count} tokens of {request}")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while not condition():
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TimeoutError(what)


def request(
    number: int, prompt: Sequence[int], max_tokens: int = 8, *, deadline: float | None = None
) -> GenerationRequest:
    return GenerationRequest(
        id=number,
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        sampling=SamplingParams(),
        end_ids=(2,),
        stop_ids=(),
        priority=PriorityClass.INTERACTIVE,
        tenant="",
        cache_salt=b"",
        arrival=time.monotonic(),
        deadline=deadline,
        ttft_deadline=None,
    )


def alone(asked: GenerationRequest) -> list[int]:
    """What the simulated language says to this prompt when nothing else exists."""
    history = History(BLOCK, asked.prompt)
    output: list[int] = []
    while len(output) < asked.max_tokens:
        output.append(LANGUAGE.likeliest(history.state))
        history.append(output[-1])
        if output[-1] in asked.end_ids:
            break
    return output
