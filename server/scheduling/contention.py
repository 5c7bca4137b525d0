"""How long until a prompt is through, among others that compete for each step.

A step's time for prompts is shared as server/scheduling/prefills.py shares it: in order; a long prompt takes at most its part while others want
the step; no more than so many at once; what is left over goes to the first. Between two completions the shares stay what they are, so the
model goes from completion to completion, as a fluid does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NOTHING = 1e-12
"""Seconds: what rounding may leave."""
MOST_JOBS = 64
"""Beyond so many ahead, the first ones count as one."""


class Job(NamedTuple):
    """A prompt, or what is left of one."""

    seconds: float
    """What computing it costs, beside what its steps cost anyway."""
    long: bool
    """It takes only its part of a step while others want it."""
    blocks: int = 0
    """KV blocks that it has or will have with its seat, and gives back when its answer is over."""
    output: float = 0.0
    """Steps that its answer will take."""
    seated: bool = True
    seats: int = 1
    """More than one: it stands for so many requests."""


class Through(NamedTuple):
    """A prompt is through."""

    spent: float
    """Seconds of prompts computed until then, its own included."""
    left: float
    """Seconds of prompts that the others who are seated have left then."""
    idle: float = 0.0
    """Steps until then in which no prompt was computed, as nobody could be seated who had one."""


def until_through(ahead: Sequence[Job], own: Job, behind: Sequence[Job], parts: int) -> Through:
    """Where everybody has a seat. ``ahead`` and ``behind`` in their order; ``parts``: how many long ones share a step. O(jobs * parts)."""
    first = len(ahead) - MOST_JOBS
    if first > 0:
        ahead = [Job(sum(job.seconds for job in ahead[:first]), long=False), *ahead[first:]]
    jobs = [*ahead, own, *behind]
    left = [job.seconds for job in jobs]
    living, place = list(range(len(jobs))), len(ahead)
    spent = 0.0
    while left[place] > NOTHING:
        head = living[0]
        if not jobs[head].long:  # it takes each step whole until it is through
            spent += left[head]
            left[head] = 0.0
            del living[0]
            continue
        shares = shares_of_step(jobs, living, parts)
        span = min(left[at] / share for at, share in shares)
        spent += span
        for at, share in shares:
            left[at] -= span * share
            if left[at] <= NOTHING:
                living.remove(at)
    return Through(spent, sum(left[at] for at in living))


def shares_of_step(jobs: Sequence[Job], living: Sequence[int], parts: int) -> list[tuple[int, float]]:
    """Of each step, which part goes to whom. They add up to 1."""
    if not jobs[living[0]].long:
        return [(living[0], 1.0)]
    free, shares = 1.0, list[tuple[int, float]]()
    for at in living[:parts]:
        share = min(free, 1.0 / parts) if jobs[at].long and len(living) > 1 else free
        shares.append((at, share))
        free -= share
        if free <= NOTHING:
            break
    first, share = shares[0]
    shares[0] = first, share + free
    return shares
