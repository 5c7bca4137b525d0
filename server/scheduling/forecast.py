"""When a newcomer's first token will be out, from the work ahead of it and the cost model; and how well that turned out.

    through = seconds of prompts computed until its own is, by class, rank and the shares of a step (contention.py)
    idle    = steps until then without a prompt, where seats or KV blocks are short (vacancy.py)
    steps   = ceil(through / what a step gives to prompts)
    TTFT    = rest of the step in flight + steps full ones where others still want them, else through + what its steps cost anyway, and idle ones

Who comes later and passes is expected as it lately was (overtaking.py). What this leaves out (how many more will stream by then, work
outside the engine) shows as a factor between prediction and truth, the median of what lately came, learned apart for an empty room and a
waiting one, and for short prompts and long ones. Who is refused teaches nothing: a factor that was learned while the machine stood still
would refuse whoever could show that it stands no more, and so fades with each run of refusals that only it caused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, exp, log
from statistics import median

from server.engine import GenerationRequest, RequestFinished, SequenceFinished
from server.errors import OverloadedError
from server.scheduling.admission import LONGEST_RETRY, SHORTEST_RETRY
from server.scheduling.config import BatcherConfig
from server.scheduling.contention import Job, Through, until_through
from server.scheduling.cost import StepCost
from server.scheduling.crowd import MOST_AHEAD, MOST_BEHIND, Crowd
from server.scheduling.making import make_pace
from server.scheduling.outlook import Outlook, Streaming
from server.scheduling.overtaking import Later, Overtaking
from server.scheduling.rank_sums import Around
from server.scheduling.reception import Reception
from server.scheduling.vacancy import Room, in_groups, until_seated_and_through


@dataclass(frozen=True, slots=True)
class House:
    """What a forecast asks of a scheduler. Any thread may."""

    waiting: Callable[[int, float, int, int], Around]
    """Who waits around a class and a rank, at most so many one by one before it and after it."""
    streams: Callable[[], Iterable[Streaming]]
    """Who streams, in any order."""
    seat_tokens: Callable[[GenerationRequest, int], int]
    """Tokens that KV blocks are set aside for when a request is seated of whose prompt so many are not cached."""
    block_size: int


_ROUNDING = 1e-9
_AMPLE = 1 << 30
"""Seats, or blocks, that nobody lacks."""

_WINDOW = 63
"""Outcomes of a kind that are remembered."""
_DOUBT = 8
"""The model counts as so many outcomes that say it is right: a few wild ones teach nothing."""
_DOUBT_AFTER = 32
"""Refusals, without one outcome between them, after which the factor that caused them counts half, as a logarithm."""
_MAX_PENDING = 65_536


class Forecast:
    """Predicts on any thread, learns on the engine's. Reads the cost model and the lengths, which the engine thread writes."""

    def __init__(self, config: BatcherConfig, cost: StepCost, reception: Reception, house: House) -> None:
        self._config = config
        self._cost = cost
        self._reception = reception
        self._house = house
        self._known: tuple[Outlook, list[Streaming]] | None = None
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

    def first_token(self, request: GenerationRequest, uncached: int, outlook: Outlook, now: float) -> float:
        """Predicted seconds from now to its first token, of which ``uncached`` prompt tokens are to compute; remembered, to learn from."""
        raw, kind = self._predict(request, uncached, outlook, now)
        return raw * exp(self._trusted(kind))

    def check(self, request: GenerationRequest, uncached: int, outlook: Outlook, now: float) -> None:
        """Raises OverloadedError where the request would only wait to miss a deadline of its own. Where nobody is ahead there is
        nothing to wait for, and everybody is admitted."""
        raw, kind = self._predict(request, uncached, outlook, now)
        kindly = self._kindly(outlook)
        if kindly is not outlook:
            raw = self._raw(request, uncached, kindly, now)
        self._require(request, raw, kind, outlook, now)

    def check_shortest(self, shortest: GenerationRequest, outlook: Outlook, now: float) -> None:
        """As check(), of a request with a prompt of a single token, which stands for one of any length; nothing is remembered of it."""
        crowded = int(_is_crowded(outlook))
        kind = min(crowded, 2 + crowded, key=self._trusted)
        self._require(shortest, self._raw(shortest, 1, self._kindly(outlook), now), kind, outlook, now)

    def _kindly(self, outlook: Outlook) -> Outlook:
        """What to refuse by. Before answers were seen nothing says when those who stream will end: nobody is refused for the worst that they
        may do."""
        if self._reception.lengths.known:
            return outlook
        return outlook._replace(free_seats=_AMPLE, free_blocks=_AMPLE)

    def _predict(self, request: GenerationRequest, uncached: int, outlook: Outlook, now: float) -> tuple[float, int]:
        """Seconds by the model alone, and the kind whose factor they want; remembered, to learn from."""
        raw = self._raw(request, uncached, outlook, now)
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

    def _raw(self, request: GenerationRequest, uncached: int, outlook: Outlook, now: float) -> float:
        cost, long = self._cost, self._config.long_prompt_tokens
        place = int(request.priority), self._reception.expect(request, uncached).rank
        waiting = self._house.waiting(*place, MOST_AHEAD, MOST_BEHIND)
        crowd = Crowd(waiting, outlook, place, cost=cost, long=long, block_size=self._house.block_size)
        seconds = cost.prompt_seconds(uncached, len(request.prompt) - uncached)
        blocks = crowd.blocks(self._house.seat_tokens(request, uncached))
        own = Job(seconds, uncached > long, blocks, seated=False)
        alone, given, _ = self._step(outlook, crowd, own.seconds, uncached, Later())
        later = self._expect_more(request, place, (crowd.seconds_ahead + own.seconds) * (1.0 + alone / given))
        alone, given, most = self._step(outlook, crowd, own.seconds, uncached, later)
        crowd.ahead += self._passing(request, crowd, later)
        through = self._until_through(crowd, own, given, outlook)
        # Where nobody streams yet, the next step may take longer than those after it.
        idle = self._config.budget != "fixed" and not outlook.decodes and not outlook.step_seconds
        first = max(given, min(self._config.idle_step, most)) if idle else given
        steps = 1 + max(0, ceil((through.spent - first) / given - _ROUNDING))
        # Whoever is through amid a step hears of it at its end; that is where the prompts of that step end, or where it is full.
        computed = min(through.spent + through.left + later.behind, first + (steps - 1) * given)
        wait = (steps + through.idle) * alone + computed
        return min(outlook.step_seconds, max(0.0, outlook.step_ends - now)) + wait

    def _until_through(self, crowd: Crowd, own: Job, given: float, outlook: Outlook) -> Through:
        parts = self._config.max_partial_prefills
        if not crowd.lacks_room(own, outlook):
            return until_through(crowd.ahead, own, crowd.behind, parts)
        room = Room(outlook.free_seats, outlook.free_blocks, self._streams(outlook))
        return until_seated_and_through(crowd.ahead, own, crowd.behind, parts, given=given, room=room)

    def _streams(self, outlook: Outlook) -> list[Streaming]:
        """Looked up once for each picture of the house: whoever asks before the next step is told the same."""
        known = self._known
        if known is None or known[0] is not outlook:
            known = self._known = outlook, in_groups(self._house.streams())
        return known[1]

    def _expect_more(self, request: GenerationRequest, place: tuple[int, float], wait: float) -> Later:
        if self._overtaking is None:
            return Later()
        return self._overtaking.expect(request.arrival, *place, wait)

    def _passing(self, request: GenerationRequest, crowd: Crowd, later: Later) -> list[Job]:
        """Those who will probably pass: alike, with answers as long as the newcomer's, seated one by one before it."""
        if not later.passing:
            return []
        number = max(1, later.passing_requests)
        blocks = crowd.blocks(round(later.passing_room / number))
        output = self._reception.lengths.expect(request)
        return [Job(later.passing / number, long=False, blocks=blocks, output=output, seated=False)] * number

    def _step(
        self, outlook: Outlook, crowd: Crowd, own: float, uncached: int, later: Later
    ) -> tuple[float, float, float]:
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
            tokens = crowd.capped_tokens + min(config.long_prompt_tokens, uncached) + round(later.tokens)
            pace = self._pace.step(alone, decodes, crowd.requests + 1 + later.requests, tokens)
            given = min(max(pace - alone, config.min_prefill_tokens * mean), most * mean)
        return alone, max(given, _ROUNDING), most * mean

    def _streaming(self, request: GenerationRequest, outlook: Outlook) -> float:
        tokens = self._reception.lengths.expect(request)
        return tokens * self._cost.seconds(0, outlook.decodes + 1, outlook.context + len(request.prompt), 0.0)

    # ------------------------------------------------------------------ the engine thread

    def arrived(self, request: GenerationRequest, uncached: int, rank: float) -> None:
        """A request was queued under this rank."""
        if self._overtaking is not None:
            self._overtaking.arrived(
                request.arrival,
                int(request.priority),
                rank,
                seconds=self._cost.prompt_seconds(uncached, len(request.prompt) - uncached),
                tokens=min(uncached, self._config.long_prompt_tokens),
                room=self._house.seat_tokens(request, uncached),
            )

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
