"""From the logits of a step to what each of its rows asked for."""

from __future__ import annotations

from collections.abc import Sequence

from engines.contract import Output, Row, Sample, Score
from engines.openvino.layout import StepLayout
from engines.sampling.sampler import NO_TOKEN, Draws, Sampler
from engines.sampling.thresholds import Logits


def read_out(rows: Sequence[Row], layout: StepLayout, logits: Logits, sampler: Sampler) -> list[Output]:
    """``logits`` [R, vocabulary] in the order of ``layout.wanted``. All draws of the step are made together.

    Raises StepError for a row that is no distribution.
    """
    draws = _draw(rows, layout, logits, sampler)
    outputs = []
    place = drawn = 0
    for row in rows:
        want = row.want
        if isinstance(want, Sample):
            outputs.append(_sampled(row.sequence, draws, drawn, want.count))
            drawn += want.count
            place += want.count
        elif isinstance(want, Score):
            outputs.append(_scored(row.sequence, want, logits[place : place + len(want.targets)], sampler))
            place += len(want.targets)
    return outputs


def _draw(rows: Sequence[Row], layout: StepLayout, logits: Logits, sampler: Sampler) -> Draws:
    sequences: list[int] = []
    positions: list[int] = []
    places: list[int] = []
    place = 0
    for row, context in zip(rows, layout.contexts, strict=True):
        want = row.want
        if isinstance(want, Sample):
            sequences.extend([row.sequence] * want.count)
            positions.extend(range(context - want.count + 1, context + 1))
            places.extend(range(place, place + want.count))
            place += want.count
        elif isinstance(want, Score):
            place += len(want.targets)
    return sampler.draw(logits if len(places) == place else logits[places], sequences, positions)


def _sampled(sequence: int, draws: Draws, first: int, count: int) -> Output:
    tokens = tuple(draws.tokens[first : first + count])
    if NO_TOKEN in tokens:
        tokens = tokens[: tokens.index(NO_TOKEN)]
    if not tokens or first not in draws.logprobs:
        return Output(sequence, tokens)
    pairs = [draws.logprobs[at] for at in range(first, first + len(tokens))]
    top = tuple(likeliest for _, likeliest in pairs)
    return Output(sequence, tokens, tuple(logprob for logprob, _ in pairs), top if any(top) else ())


def _scored(sequence: int, want: Score, logits: Logits, sampler: Sampler) -> Output:
    logprobs, top = sampler.score(sequence, logits, want.targets, want.top)
    return Output(sequence, (), tuple(logprobs), tuple(top) if want.top else ())
