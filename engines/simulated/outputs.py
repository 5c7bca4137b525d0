"""From the states after a step's new tokens to what each row wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from engines.contract import Output, Row, Sample, Score
from engines.sampling.sampler import NO_TOKEN
from engines.simulated.draws import Draw, Drawer, Drawn
from engines.simulated.hashing import Words
from engines.simulated.sequences import OpenSequence
from engines.simulated.staging import StagedStep


def collect(staged: StagedStep, states: Words, sequences: Mapping[int, OpenSequence], drawer: Drawer) -> list[Output]:
    """``states`` [T] follow each new token. All draws of the step go to the drawer at once."""
    draws = list(_draws(staged, states, sequences))
    drawn = iter(drawer.draw(draws) if draws else ())
    outputs = []
    for row, end in zip(staged.rows, staged.token_starts[1:].tolist(), strict=True):
        match row.want:
            case Sample(count=count):
                outputs.append(_sampled(row, [next(drawn) for _ in range(count)]))
            case Score() as want:
                outputs.append(_scored(row, want, states[end - len(want.targets) : end], drawer))
    return outputs


def _draws(staged: StagedStep, states: Words, sequences: Mapping[int, OpenSequence]) -> Iterator[Draw]:
    words, ends, new = states.tolist(), staged.token_starts[1:].tolist(), staged.new.tolist()
    for at, row in enumerate(staged.rows):
        if isinstance(row.want, Sample):
            spec = sequences[row.sequence].spec
            for back in range(row.want.count, 0, -1):
                yield Draw(spec, words[ends[at] - back], row.past + new[at] - back + 1)


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


def _scored(row: Row, want: Score, states: Words, drawer: Drawer) -> Output:
    logprobs, tops = drawer.score(row.sequence, states, want.targets, want.top)
    return Output(sequence=row.sequence, logprobs=tuple(logprobs), top=tuple(tops) if want.top else ())
