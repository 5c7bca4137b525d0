"""A small world around a batcher: the simulated runner as the oracle, a counted clock, and all events in order."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.contract import SequenceSpec, StepError, StepPlan
from engines.sampling.params import SamplingParams
from engines.simulated.clock import VirtualClock
from engines.simulated.draws import Draw, TokenDrawer, hashed_state
from engines.simulated.hashing import Words
from engines.simulated.history import History
from engines.simulated.language import Language
from engines.simulated.step_runner import SimulatedStepRunner
from server.engine import (
    Event,
    FinishReason,
    GenerationRequest,
    PriorityClass,
    PromptScored,
    RequestFinished,
    SequenceFinished,
    TokensEvent,
)
from server.scheduling.batcher import Batcher
from server.scheduling.config import BatcherConfig
from server.scheduling.policies import Policies

BLOCK = 4


class RememberingLanguage(Language):
    """Makes each state's row once: a world asks for most of them again, when it judges what was said."""

    def __init__(self, vocab_size: int, **rest: Any) -> None:
        super().__init__(vocab_size, **rest)
        self._rows: dict[int, NDArray[np.float32]] = {}

    def logits(self, states: Words) -> NDArray[np.float32]:
        rows = self._rows
        if len(rows) > 4096:
            rows.clear()
        asked = states.tolist()
        unknown = [state for state in dict.fromkeys(asked) if state not in rows]
        if unknown:
            made = super().logits(np.array(unknown, dtype=np.uint64))
            made.flags.writeable = False
            rows.update((state, made[at : at + 1]) for at, state in enumerate(unknown))
        if len(asked) == 1:
            return rows[asked[0]]
        return np.concatenate([rows[state] for state in asked])


LANGUAGE = RememberingLanguage(500, end_ids=(2,), end_rate=0.03, seed=11)
CONFIG = BatcherConfig(
    max_sequences=8,
    step_tokens=16,
    budget="fixed",
    order="arrival",
    min_prefill_tokens=4,
    min_copy_tokens=1,
    long_prompt_tokens=24,
)


def make_request(
    request: int,
    prompt: Sequence[int],
    max_tokens: int = 8,
    *,
    priority: PriorityClass = PriorityClass.STANDARD,
    salt: bytes = b"",
    tenant: str = "",
    end_ids: tuple[int, ...] = (2,),
    stop_ids: tuple[int, ...] = (),
    arrival: float = 0.0,
    deadline: float | None = None,
    ttft_deadline: float | None = None,
    n: int = 1,
    temperature: float = 0.0,
    penalty: float = 0.0,
    no_repeat_ngram: int = 0,
    prompt_logprobs: int | None = None,
) -> GenerationRequest:
    return GenerationRequest(
        id=request,
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        sampling=SamplingParams(
            seed=request, temperature=temperature, frequency_penalty=penalty, no_repeat_ngram=no_repeat_ngram
        ),
        end_ids=end_ids,
        stop_ids=stop_ids,
        priority=priority,
        tenant=tenant,
        cache_salt=salt,
        arrival=arrival,
        deadline=deadline,
        ttft_deadline=ttft_deadline,
        n=n,
        prompt_logprobs=prompt_logprobs,
    )


def alone(
    request: GenerationRequest, max_context: int = 10_000, index: int = 0, *, most: int | None = None
) -> list[int]:
    """What the simulated language says to this prompt as its ``index``-th output when nothing else exists, without any KV block;
    of that no more than ``most`` tokens."""
    limit = request.max_tokens if most is None else min(most, request.max_tokens)
    spec = SequenceSpec(0, index, request.sampling, array("i", request.prompt))
    drawer = TokenDrawer(LANGUAGE)
    drawer.open(spec)
    history = History(BLOCK, request.prompt)
    output: list[int] = []
    while len(output) < limit and len(history) < max_context:
        draw = Draw(spec, history.state, len(history))
        # One token at a time, integers are several times faster than arrays.
        shaped = request.sampling.shapes
        output.append(drawer.draw([draw])[0].token if shaped else LANGUAGE.likeliest(hashed_state(draw)))
        history.append(output[-1])
        if output[-1] in request.end_ids or output[-1] in request.stop_ids:
            break
    return output


def natural_end(request: GenerationRequest, expected: list[int]) -> FinishReason:
    """Why the request ends when nobody interferes."""
    if expected and expected[-1] in request.end_ids:
        return FinishReason.END
    return FinishReason.STOP_TOKEN if expected and expected[-1] in request.stop_ids else FinishReason.LENGTH


class World:
    """Drives a batcher as the engine loop does, checking its integrity after every step."""

    def __init__(
        self,
        *,
        blocks: int = 64,
        max_context: int = 64,
        config: BatcherConfig = CONFIG,
        policies: Policies | None = None,
        draft: bool = True,
        check: bool = True,
    ) -> None:
        self.runner = SimulatedStepRunner(
            LANGUAGE,
            blocks=blocks,
            block_size=BLOCK,
            max_rows=16,
            max_step_tokens=64,
            max_context=max_context,
            clock=VirtualClock(),
            poison=True,
            paranoid=check,
        )
        self.batcher = Batcher(self.runner.limits, fingerprint="test", config=config, policies=policies)
        self.draft = draft
        self.check = check
        self.now = 0.0
        self.plans: list[StepPlan] = []
        self.events: list[Event] = []
        self.outputs: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        """By request and sequence."""
        self.sequence_ends: dict[int, SequenceFinished] = {}
        """Of the first sequences."""
        self.all_ends: dict[tuple[int, int], SequenceFinished] = {}
        self.scores: defaultdict[int, dict[int, float]] = defaultdict(dict)
        """By request, place in the prompt -> log-probability."""
        self.ends: dict[int, RequestFinished] = {}
        self.numbers: dict[tuple[int, int], int] = {}
        """The runner's name for each sequence: they are numbered in the order in which requests come."""
        self.drawn: Counter[int] = Counter()
        """How many tokens the runner drew, by its name for the sequence."""
        self.failed: set[int] = set()
        """Sequences named by a step that failed."""

    def add(self, request: GenerationRequest) -> GenerationRequest:
        self.batcher.add(request, self.now)
        for index in range(request.n):
            self.numbers[request.id, index] = len(self.numbers) + 1
        return request

    def start(self) -> StepPlan | None:
        """Plan and start a step; finish() must follow where it gave one."""
        plan = self.batcher.plan(self.now)
        self._gather()
        if plan is not None:
            self.plans.append(plan)
            self._handle = self.runner.start(plan)
            if self.draft:
                self.batcher.draft()
        self._check()
        return plan

    def finish(self) -> None:
        step = self.plans[-1].step
        self.now += 1.0
        try:
            result = self._handle.result()
            for output in result.outputs:
                self.drawn[output.sequence] += len(output.tokens)
            self.batcher.apply(result, self.now)
        except StepError:
            self.failed.update(row.sequence for row in self.plans[-1].rows)
            self.batcher.fail(step, self.now)
        self._gather()
        self._check()

    def step(self) -> StepPlan | None:
        plan = self.start()
        if plan is not None:
            self.finish()
        return plan

    def run(self, steps: int = 10_000) -> None:
        """Until nothing lives. Fails when that takes more than ``steps`` steps or nothing can run."""
        for _ in range(steps):
            if self.batcher.idle:
                return
            assert self.step() is not None or self.batcher.idle, "requests live, but nothing runs"
        raise AssertionError(f"not over after {steps} steps")

    def reason(self, request: int) -> FinishReason:
        return self.ends[request].reason

    @property
    def output(self) -> defaultdict[int, list[int]]:
        """Of each request's first sequence."""
        firsts = {request: tokens for (request, sequence), tokens in self.outputs.items() if sequence == 0}
        return defaultdict(list, firsts)

    def _gather(self) -> None:
        events = self.batcher.collect()
        assert events == sorted(events, key=_rank), "first tokens, then other tokens, then finishes"
        for event in events:
            assert event.request not in self.ends, "an event after the last"
            match event:
                case PromptScored(request=request, first=place, logprobs=logprobs):
                    assert not any(said for (of, _), said in self.outputs.items() if of == request), (
                        "scores after tokens"
                    )
                    assert place == len(self.scores[request]) + 1, "scores out of order"
                    self.scores[request].update(enumerate(logprobs, place))
                case TokensEvent(request=request, sequence=sequence, tokens=tokens, first=first):
                    assert (request, sequence) not in self.all_ends, "tokens after the sequence's end"
                    assert first == (not self.outputs[request, sequence])
                    self.outputs[request, sequence].extend(tokens)
                case SequenceFinished(request=request, sequence=sequence):
                    assert (request, sequence) not in self.all_ends, "a sequence ended twice"
                    self.all_ends[request, sequence] = event
                    if sequence == 0:
                        self.sequence_ends[request] = event
                case RequestFinished(request=request):
                    self.ends[request] = event
        self.events.extend(events)

    def _check(self) -> None:
        if self.check:
            self.batcher.check_integrity()


def _rank(event: Event) -> int:
    if isinstance(event, PromptScored):
        return 1
    return (0 if event.first else 1) if isinstance(event, TokensEvent) else 2
