"""From the states after a step's new tokens to what each row wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

import numpy as np

from engines.contract import Output, Row, Sample, Score
from engines.sampling.sampler import NO_TOKEN
from engines.simulated.draws import Draw, Drawer, Drawn
from engines.simulated.sequences import OpenSequence
from engines.simulated.staging import StagedStep


def collect(
    staged: StagedStep, states: list[int], sequences: Mapping[int, OpenSequence], drawer: Drawer
) -> list[Output]:
    """``states`` [T] follow each new token. All draws of the step go to the drawer at once."""
    draws = list(_draws(staged, states, sequences))
    drawn = iter(drawer.draw(draws) if draws else ())
    outputs = []
    for row, end in zip(staged.rows, staged.token_starts[1:], strict=True):
        match row.want:
            case Sample(count=count):
                outputs.append(_sampled(row, [next(drawn) for _ in range(count)]))
            case Score() as want:
                outputs.append(_scored(row, want, states[end - len(want.targets) : end], drawer))
    return outputs


def _draws(staged: StagedStep, states: list[int], sequences: Mapping[int, OpenSequence]) -> Iterator[Draw]:
    starts = staged.token_starts
    for at, row in enumerate(staged.rows):
        if isinstance(row.want, Sample):
            spec, end = sequences[row.sequence].spec, starts[at + 1]
            length = row.past + end - starts[at]
            for back in range(row.want.count, 0, -1):
                yield Draw(spec, states[end - back], length - back + 1)


def _sampled(row: Row, drawn: Sequence[Drawn]) -> Output:
    drawn = list(takewhile(lambda one: one.token != NO_TOKEN, drawn))
    logprobs = tuple(one.logprob for one in drawn if one.logprob is not None)
    top = tuple(one.top for one in drawn)
    return Output(
        sequence=row.sequence,
        tokens=tuple(one.token for one in drawn),
        logprobs=logprobs,
        top=top if any(top) else (),
    )


def _scored(row: Row, want: Score, states: list[int], drawer: Drawer) -> Output:
    logprobs, tops = drawer.score(row.sequence, np.array(states, dtype=np.uint64), want.targets, want.top)
    return Output(sequence=row.sequence, logprobs=tuple(logprobs), top=tuple(tops) if want.top else ())
