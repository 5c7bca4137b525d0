"""When a newcomer's first token will be out, from the work ahead of it and the cost model; and how well that turned out.

    steps = ceil(seconds of prompts ahead and its own / what a step gives to prompts)
    wait  = rest of the step in flight + prompts that go before by class and rank + what their steps cost anyway, or until a seat is free, if that is later
    TTFT  = wait + its own prompt + what its steps cost anyway

What this leaves out (who will come and pass, how many more will stream by then, work outside the engine) shows as a factor between
prediction and truth, learned apart for an empty room and a waiting one, and for short prompts and long ones. Who is refused teaches nothing: a
factor that was learned while the machine stood still would refuse whoever could show that it stands no more, and so fades with each run of
refusals that only it caused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil, exp, log

from server.engine import GenerationRequest, RequestFinished, SequenceFinished
from server.errors import OverloadedError
from server.scheduling.admission import LONGEST_RETRY, SHORTEST_RETRY
from server.scheduling.config import BatcherConfig
from server.scheduling.cost import StepCost
from server.scheduling.making import make_pace
from server.scheduling.outlook import Outlook
from server.scheduling.reception import Reception

Before = Callable[[int, float], tuple[int, int]]
"""From class and rank to how many of those who wait go before, and their tokens to compute."""

_LEARN = 0.05
_LEARN_FIRST = 0.15
"""The first outcomes teach more: this over their number."""
_GREATEST_STEP = 0.7
"""Of what one outcome may teach, as a logarithm: a factor of two."""
_DOUBT_AFTER = 32
"""Refusals, without one outcome between them, after which the factor that caused them counts half, as a logarithm."""
_MAX_PENDING = 65_536


class Forecast:
    """Predicts on any thread, learns on the engine's. Reads the cost model and the lengths, which the engine thread writes."""

    def __init__(self, config: BatcherConfig, cost: StepCost, reception: Reception, before: Before) -> None:
        self._config = config
        self._cost = cost
        self._reception = reception
        self._before = before
        self._pace = make_pace(config, cost)
        self._factor = [0.0] * 4
        """Logarithm of truth over prediction, by kind: where nobody waited and where somebody did, of short prompts and of long ones,
        which whoever comes later passes."""
        self._seen = [0] * 4
        self._refused = [0] * 4
        """Since the last outcome of its kind: who would have been admitted but for the factor. Any thread counts; the worst of a race is one too few."""
        self._pending: dict[int, tuple[float, int]] = {}

    # ------------------------------------------------------------------ any thread

    def first_token(self, request: GenerationRequest, uncached: int, outlook: Outlook) -> float:
        """Predicted seconds from now to its first token, of which ``uncached`` prompt tokens are to compute; remembered, to learn from."""
        raw, kind = self._predict(request, uncached, outlook)
        return raw * exp(self._trusted(kind))

    def check(self, request: GenerationRequest, uncached: int, outlook: Outlook, now: float) -> None:
        """Raises OverloadedError where the request would only wait to miss a deadline of its own. Where nobody is ahead there is
        nothing to wait for, and everybody is admitted."""
        self._require(request, *self._predict(request, uncached, outlook), outlook, now)

    def check_shortest(self, shortest: GenerationRequest, outlook: Outlook, now: float) -> None:
        """As check(), of a request with a prompt of a single token, which stands for one of any length; nothing is remembered of it."""
        crowded = int(_is_crowded(outlook))
        kind = min(crowded, 2 + crowded, key=self._trusted)
        self._require(shortest, self._raw(shortest, 1, outlook), kind, outlook, now)

    def _predict(self, request: GenerationRequest, uncached: int, outlook: Outlook) -> tuple[float, int]:
        """Seconds by the model alone, and the kind whose factor they want; remembered, to learn from."""
        raw = self._raw(request, uncached, outlook)
        kind = 2 * int(uncached > self._config.long_prompt_tokens) + _is_crowded(outlook)
        if len(self._pending) < _MAX_PENDING:
            self._pending[request.id] = (raw, kind)
        return raw, kind

    def _require(self, request: GenerationRequest, raw: float, kind: int, outlook: Outlook, now: float) -> None:
        if not any(outlook.waiting_requests) and not outlook.prefilling_tokens and outlook.free_seats > 0:
            return
        predicted = raw * exp(self._trusted(kind))
        if request.ttft_deadline is not None and now + predicted > request.ttft_deadline:
            left = request.ttft_deadline - now
            self._refused_one(request, kind, by_factor=raw <= left)
            raise _refusal("ttft_deadline", "its first token", predicted, left)
        if request.deadline is not None:
            streaming, left = self._streaming(request, outlook), request.deadline - now
            if predicted + streaming > left:
                self._refused_one(request, kind, by_factor=raw + streaming <= left)
                raise _refusal("deadline", "its end", predicted + streaming, left)

    def _refused_one(self, request: GenerationRequest, kind: int, *, by_factor: bool) -> None:
        """``by_factor``: the model alone would have admitted it."""
        self._pending.pop(request.id, None)
        if by_factor:
            self._refused[kind] += 1

    def _trusted(self, kind: int) -> float:
        return self._factor[kind] * 0.5 ** (self._refused[kind] // _DOUBT_AFTER)

    def _raw(self, request: GenerationRequest, uncached: int, outlook: Outlook) -> float:
        cost, place = self._cost, (int(request.priority), self._reception.expect(request, uncached).rank)
        requests, tokens = self._before(*place)
        tokens += outlook.prefilling_tokens - sum(left for *other, left in outlook.prefilling if tuple(other) > place)
        alone, given = self._step(outlook, requests + 1, tokens + uncached)
        # Of the prompts ahead only the sum is known: as if they were of equal length.
        ahead = cost.prompt_seconds(1, tokens // (2 * (requests + 1))) * tokens
        own = cost.prompt_seconds(uncached, len(request.prompt) - uncached)
        wait = outlook.step_seconds / 2 + ahead + alone * self._steps(ahead, tokens, given)
        lacking = requests + 1 - outlook.free_seats
        if lacking > 0 and outlook.seats_per_second > 0.0:
            wait = max(wait, lacking / outlook.seats_per_second)
        both = self._steps(ahead + own, tokens + uncached, given) - self._steps(ahead, tokens, given)
        return wait + own + alone * max(1, both)

    def _step(self, outlook: Outlook, prompts: int, tokens: int) -> tuple[float, float]:
        """What a step costs without prompts, and how many seconds of prompts it takes."""
        config = self._config
        alone = self._cost.seconds(0, outlook.decodes, outlook.context, 0.0)
        if config.budget == "fixed":
            return alone, self._cost.prompt_seconds(
                max(config.min_prefill_tokens, config.step_tokens - outlook.decodes)
            )
        if not outlook.decodes:
            return alone, config.idle_step
        return alone, self._pace.step(alone, outlook.decodes, prompts, tokens) - alone

    def _steps(self, seconds: float, tokens: int, given: float) -> int:
        by_time = ceil(seconds / given) if given > 0.0 else 0
        return max(by_time, ceil(tokens / self._config.step_tokens))

    def _streaming(self, request: GenerationRequest, outlook: Outlook) -> float:
        tokens = self._reception.lengths.expect(request)
        return tokens * self._cost.seconds(0, outlook.decodes + 1, outlook.context + len(request.prompt), 0.0)

    # ------------------------------------------------------------------ the engine thread

    def learn(self, finishes: Iterable[SequenceFinished | RequestFinished]) -> None:
        """Requests are over: compare what was predicted of them with what came."""
        for event in finishes:
            if type(event) is RequestFinished:
                self._compare(event)

    def _compare(self, event: RequestFinished) -> None:
        pending = self._pending.pop(event.request, None)
        truth = event.timings.first_token
        if pending is None or truth is None or truth <= 0.0 or pending[0] <= 0.0:
            return
        raw, kind = pending
        self._factor[kind], self._refused[kind] = self._trusted(kind), 0
        miss = log(truth / raw) - self._factor[kind]
        self._seen[kind] += 1
        rate = max(_LEARN, _LEARN_FIRST / self._seen[kind])
        self._factor[kind] += rate * min(_GREATEST_STEP, max(-_GREATEST_STEP, miss))


def _is_crowded(outlook: Outlook) -> bool:
    return any(outlook.waiting_requests) or outlook.free_seats <= 0


def _refusal(reason: str, what: str, predicted: float, left: float) -> OverloadedError:
    return OverloadedError(
        f"{what} is expected in {predicted:.3g} s, the {reason} leaves {max(0.0, left):.3g} s",
        reason=f"predicted_{reason}",
        retry_after=min(LONGEST_RETRY, max(SHORTEST_RETRY, predicted - left)),
    )
