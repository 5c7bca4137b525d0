"""Who is around a newcomer: whose prompts are computed before its own, and after; what they cost, and what room they take."""

from __future__ import annotations

from collections.abc import Iterable

from server.scheduling.contention import Job
from server.scheduling.cost import StepCost
from server.scheduling.outlook import Outlook, Prefilling
from server.scheduling.rank_sums import Around, Sums, minus, of_one, total

MOST_AHEAD = 64
"""Of those who wait before a newcomer so many are looked at one by one."""
_GROUPS = 32
"""The farther ones count as so many, each for its part of them."""
MOST_BEHIND = 32
"""Of those behind only the first share its steps."""


class Crowd:
    """Around a newcomer at ``place``: class and rank."""

    __slots__ = (
        "_block_size",
        "_cost",
        "ahead",
        "behind",
        "capped_tokens",
        "requests",
        "seconds_ahead",
        "tokens_ahead",
    )

    def __init__(
        self,
        waiting: Around,
        outlook: Outlook,
        place: tuple[int, float],
        *,
        cost: StepCost,
        long: int,
        block_size: int,
    ) -> None:
        self._cost, self._block_size = cost, block_size
        ahead, behind = list[Prefilling](), list[Prefilling]()
        for one in sorted(outlook.prefilling, key=_place):
            (ahead if _place(one) <= place else behind).append(one)
        first = [of_one(one.tokens, one.past + one.tokens, long) for one in ahead]
        last = [of_one(one.tokens, one.past + one.tokens, long) for one in behind]
        before, everybody = total([waiting.ahead, *first]), total([waiting.ahead, waiting.behind, *first, *last])
        self.requests, self.capped_tokens = everybody.requests, everybody.capped
        """``capped_tokens``: of each prompt no more than counts for the step's pace."""
        self.tokens_ahead, self.seconds_ahead = before.work, self._seconds(before)
        self.ahead = [self._started(one, sums) for one, sums in zip(ahead, first, strict=True)]
        taken = outlook.decodes + sum(one.seats for one in outlook.prefilling if one.seated)
        self.ahead += self._groups(minus(waiting.ahead, total(waiting.nearest)), outlook.free_seats + taken)
        self.ahead += self._waiting(waiting.nearest)
        self.behind = [self._started(one, sums) for one, sums in zip(behind, last, strict=True)]
        self.behind += self._waiting(waiting.following[: max(0, MOST_BEHIND - len(behind))])

    def blocks(self, tokens: int) -> int:
        """KV blocks for so many tokens."""
        return -(-tokens // self._block_size)

    def lacks_room(self, own: Job, outlook: Outlook) -> bool:
        """Whether not all of those ahead and the newcomer fit beside who is seated."""
        wait = [job for job in self.ahead if not job.seated]
        blocks, seats = own.blocks + sum(job.blocks for job in wait), own.seats + sum(job.seats for job in wait)
        return seats > outlook.free_seats or blocks > outlook.free_blocks

    def _seconds(self, prompts: Sums) -> float:
        return self._cost.prompts_seconds(prompts.work, prompts.twice_attention / 2)

    def _started(self, one: Prefilling, sums: Sums) -> Job:
        return Job(self._seconds(sums), sums.work > sums.capped, one.blocks, one.output, one.seated, one.seats)

    def _groups(self, prompts: Sums, seats: int) -> list[Job]:
        """What each needs is not known, only what all of them do. Those of a group who find no seat beside the others of it go on when these have
        ended. ``seats``: all there are."""
        if not prompts.requests:
            return []
        size = -(-prompts.requests // _GROUPS)
        number, rounds = -(-prompts.requests // size), -(-size // max(1, seats))
        seats = -(-size // rounds)
        blocks = self.blocks(-(-prompts.room // (number * rounds)))
        output = rounds * prompts.output / prompts.requests
        return [Job(self._seconds(prompts) / number, False, blocks, output, seated=False, seats=seats)] * number

    def _waiting(self, prompts: Iterable[Sums]) -> list[Job]:
        return [
            Job(self._seconds(one), one.work > one.capped, self.blocks(one.room), one.output, seated=False)
            for one in prompts
        ]


def _place(one: Prefilling) -> tuple[int, float]:
    return one.level, one.rank
