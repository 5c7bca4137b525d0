"""When a newcomer's first token will be out, from the work ahead of it and the cost model; and how well that turned out.

    through = seconds of prompts computed until its own is, by class, rank and the shares of a step (contention.py)
    steps   = ceil(through / what a step gives to prompts)
    TTFT    = rest of the step in flight + steps full ones where others still want them, else through + what its steps cost anyway;
              or, where seats are what is missing, until one is free + its own prompt, if that is later

Who comes later and passes is expected as it lately was (overtaking.py). What this leaves out (how many more will stream by then, how soon KV
blocks are free, work outside the engine) shows as a factor between
prediction and truth, the median of what lately came, learned apart for an empty room and a waiting one, and for short prompts and long ones. Who is
refused teaches nothing: a factor that was learned while the machine stood still would refuse whoever could show that it stands no more, and so
fades with each run of refusals that only it caused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import ceil, exp, log
from statistics import median

from server.engine import GenerationRequest, RequestFinished, SequenceFinished
from server.errors import OverloadedError
from server.scheduling.admission import LONGEST_RETRY, SHORTEST_RETRY
from server.scheduling.config import BatcherConfig
from server.scheduling.contention import MOST_JOBS, Job, until_through
from server.scheduling.cost import StepCost
from server.scheduling.making import make_pace
from server.scheduling.outlook import Outlook
from server.scheduling.overtaking import Overtaking
from server.scheduling.rank_sums import Around, Sums, minus, of_one, total
from server.scheduling.reception import Reception

Waiting = Callable[[int, float, int, int], Around]
"""Who waits around a class and a rank, at most so many one by one before it and after it. Any thread."""

_ROUNDING = 1e-9

_MOST_BEHIND = 32
"""Of those behind a newcomer only the first share its steps."""
_WINDOW = 63
"""Outcomes of a kind that are remembered."""
_DOUBT = 8
"""The model counts as so many outcomes that say it is right: a few wild ones teach nothing."""
_DOUBT_AFTER = 32
"""Refusals, without one outcome between them, after which the factor that caused them counts half, as a logarithm."""
_MAX_PENDING = 65_536


class Forecast:
    """Predicts on any thread, learns on the engine's. Reads the cost model and the lengths, which the engine thread writes."""

    def __init__(self, config: BatcherConfig, cost: StepCost, reception: Reception, waiting: Waiting) -> None:
        self._config = config
        self._cost = cost
        self._reception = reception
        self._waiting = waiting
        self._pace = make_pace(config, cost)
        self._overtaking = Overtaking() if config.order == "aged" else None
        self._factor = [0.0] * 4
        """Logarithm of truth over prediction, by kind: where nobody waited and where somebody did, of short prompts and of long ones,
        which whoever comes later passes."""
        self._outcomes = [deque[float](maxlen=_WINDOW) for _ in range(4)]
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
        return self._factor[kind] * self._fade(kind)

    def _fade(self, kind: int) -> float:
        return float(0.5 ** (self._refused[kind] // _DOUBT_AFTER))

    def _raw(self, request: GenerationRequest, uncached: int, outlook: Outlook) -> float:
        cost, long = self._cost, self._config.long_prompt_tokens
        place = int(request.priority), self._reception.expect(request, uncached).rank
        crowd = _Crowd(self._waiting(*place, MOST_JOBS, _MOST_BEHIND), outlook, place, cost, long)
        own = Job(cost.prompt_seconds(uncached, len(request.prompt) - uncached), uncached > long)
        alone, given, most = self._step(outlook, crowd, own.seconds, uncached)
        passing, behind = self._expect_more(request, place, (crowd.seconds_ahead + own.seconds) * (1.0 + alone / given))
        crowd.ahead += [Job(passing, long=False)] * (passing > 0.0)
        through, left = until_through(crowd.ahead, own, crowd.behind, self._config.max_partial_prefills)
        # Where nobody streams yet, the next step may take longer than those after it.
        idle = self._config.budget != "fixed" and not outlook.decodes and not outlook.step_seconds
        first = max(given, min(self._config.idle_step, most)) if idle else given
        steps = 1 + max(0, ceil((through - first) / given - _ROUNDING))
        # Whoever is through amid a step hears of it at its end; that is where the prompts of that step end, or where it is full.
        wait = steps * alone + min(through + left + behind, first + (steps - 1) * given)
        lacking = crowd.requests_ahead + 1 - outlook.free_seats
        if lacking > 0 and outlook.seats_per_second > 0.0:
            seat = lacking / outlook.seats_per_second
            wait = max(wait, seat + own.seconds + alone * max(1, ceil(own.seconds / given)))
        return outlook.step_seconds / 2 + wait

    def _expect_more(self, request: GenerationRequest, place: tuple[int, float], wait: float) -> tuple[float, float]:
        """Seconds of prompts of those who will probably come later: who passes, and who does not but comes at the same instant."""
        if self._overtaking is None:
            return 0.0, 0.0
        return self._overtaking.expect(request.arrival, *place, wait)

    def _step(self, outlook: Outlook, crowd: _Crowd, own: float, uncached: int) -> tuple[float, float, float]:
        """What a step costs without prompts, how many seconds of prompts it takes, and how many at most where nobody streams."""
        config = self._config
        # Who is ahead of a newcomer streams by the time that its own turn has come.
        decodes = outlook.decodes or int(bool(crowd.ahead))
        alone = self._cost.seconds(0, decodes, outlook.context, 0.0)
        most = max(config.min_prefill_tokens, config.step_tokens - decodes)
        mean = (crowd.seconds_ahead + own) / max(1, crowd.tokens_ahead + uncached)
        if config.budget == "fixed":
            given = most * mean
        elif not decodes:
            given = min(config.idle_step, most * mean)
        else:
            tokens = crowd.capped_tokens + min(config.long_prompt_tokens, uncached)
            given = min(self._pace.step(alone, decodes, crowd.requests + 1, tokens) - alone, most * mean)
        return alone, max(given, _ROUNDING), most * mean

    def _streaming(self, request: GenerationRequest, outlook: Outlook) -> float:
        tokens = self._reception.lengths.expect(request)
        return tokens * self._cost.seconds(0, outlook.decodes + 1, outlook.context + len(request.prompt), 0.0)

    # ------------------------------------------------------------------ the engine thread

    def arrived(self, request: GenerationRequest, uncached: int, rank: float) -> None:
        """A request was queued under this rank."""
        if self._overtaking is not None:
            seconds = self._cost.prompt_seconds(uncached, len(request.prompt) - uncached)
            self._overtaking.arrived(request.arrival, int(request.priority), rank, seconds)

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
        outcomes, fade = self._outcomes[kind], self._fade(kind)
        self._refused[kind] = 0
        if fade < 1.0:
            outcomes = self._outcomes[kind] = deque((fade * outcome for outcome in outcomes), maxlen=_WINDOW)
        outcomes.append(log(truth / raw))
        self._factor[kind] = median([*outcomes, *[0.0] * _DOUBT])


def _is_crowded(outlook: Outlook) -> bool:
    return any(outlook.waiting_requests) or outlook.free_seats <= 0


def _refusal(reason: str, what: str, predicted: float, left: float) -> OverloadedError:
    return OverloadedError(
        f"{what} is expected in {predicted:.3g} s, the {reason} leaves {max(0.0, left):.3g} s",
        reason=f"predicted_{reason}",
        retry_after=min(LONGEST_RETRY, max(SHORTEST_RETRY, predicted - left)),
    )


class _Crowd:
    """Whose prompts are yet to be computed: those who go before a newcomer at ``place``, and the first of those behind."""

    __slots__ = ("ahead", "behind", "capped_tokens", "requests", "requests_ahead", "seconds_ahead", "tokens_ahead")

    def __init__(self, waiting: Around, outlook: Outlook, place: tuple[int, float], cost: StepCost, long: int) -> None:
        ahead, behind = list[Sums](), list[Sums]()
        for level, rank, tokens, past in sorted(outlook.prefilling):
            (ahead if (level, rank) <= place else behind).append(of_one(tokens, past + tokens, long))
        first, everybody = total([waiting.ahead, *ahead]), total([waiting.ahead, waiting.behind, *ahead, *behind])
        self.requests, self.capped_tokens = everybody.requests, everybody.capped
        """``capped_tokens``: of each prompt no more than counts for the step's pace."""
        self.requests_ahead = waiting.ahead.requests
        self.tokens_ahead, self.seconds_ahead = first.work, _seconds(first, cost)
        self.ahead = _jobs(ahead, cost)
        farther = minus(waiting.ahead, total(waiting.nearest))
        if farther.requests:
            self.ahead.append(Job(_seconds(farther, cost), long=False))
        self.ahead += _jobs(waiting.nearest, cost)
        self.behind = _jobs([*behind, *waiting.following[: max(0, _MOST_BEHIND - len(behind))]], cost)


def _seconds(prompts: Sums, cost: StepCost) -> float:
    return cost.prompts_seconds(prompts.work, prompts.twice_attention / 2)


def _jobs(prompts: Iterable[Sums], cost: StepCost) -> list[Job]:
    return [Job(_seconds(one, cost), one.work > one.capped) for one in prompts]
