"""How long until a prompt is through, among others that compete for each step.

A step's time for prompts is shared as server/scheduling/prefills.py shares it: in order; a long prompt takes at most its part while others want
the step; no more than so many at once; what is left over goes to the first. Between two completions the shares stay what they are, so the
model goes from completion to completion, as a fluid does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_NOTHING = 1e-12
"""Seconds: what rounding may leave."""
MOST_JOBS = 64
"""Beyond so many ahead, the first ones count as one."""


class Job(NamedTuple):
    """A prompt, or what is left of one."""

    seconds: float
    """What computing it costs, beside what its steps cost anyway."""
    long: bool
    """It takes only its part of a step while others want it."""


def until_through(ahead: Sequence[Job], own: Job, behind: Sequence[Job], parts: int) -> tuple[float, float]:
    """Seconds of prompts computed until ``own`` is through, and those left then. ``ahead`` and ``behind`` in their order; ``parts``: how
    many long ones share a step. O(jobs * parts)."""
    first = len(ahead) - MOST_JOBS
    if first > 0:
        ahead = [Job(sum(job.seconds for job in ahead[:first]), long=False), *ahead[first:]]
    jobs = [*ahead, own, *behind]
    left = [job.seconds for job in jobs]
    living, place = list(range(len(jobs))), len(ahead)
    spent = 0.0
    while left[place] > _NOTHING:
        head = living[0]
        if not jobs[head].long:  # it takes each step whole until it is through
            spent += left[head]
            left[head] = 0.0
            del living[0]
            continue
        shares = _shares(jobs, living, parts)
        span = min(left[at] / share for at, share in shares)
        spent += span
        for at, share in shares:
            left[at] -= span * share
            if left[at] <= _NOTHING:
                living.remove(at)
    return spent, sum(left[at] for at in living)


def _shares(jobs: Sequence[Job], living: Sequence[int], parts: int) -> list[tuple[int, float]]:
    """Of each step, which part goes to whom. They add up to 1."""
    free, shares = 1.0, list[tuple[int, float]]()
    for at in living[:parts]:
        share = min(free, 1.0 / parts) if jobs[at].long and len(living) > 1 else free
        shares.append((at, share))
        free -= share
        if free <= _NOTHING:
            break
    first, share = shares[0]
    shares[0] = first, share + free
    return shares
