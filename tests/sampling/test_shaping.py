"""Penalties and bans against definitions written out plainly."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.contract import SequenceSpec
from engines.sampling.params import SamplingParams
from engines.sampling.sampler import NO_TOKEN, Sampler
from engines.sampling.shaping import shapers
from engines.sampling.thresholds import Logits
from tests.sampling.rows import make_row

VOCABULARY = 12
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)


def shaped(params: SamplingParams, prompt: Sequence[int], output: Sequence[int], row: Logits) -> Logits:
    changed = row.copy()
    for shaper in shapers(params, prompt):
        for token in output:
            shaper.advance(token)
        shaper.apply(changed)
    return changed


def by_definition(params: SamplingParams, prompt: Sequence[int], output: Sequence[int], row: Logits) -> Logits:
    changed = row.astype(np.float64)
    for token, bias in params.logit_bias:
        changed[token] += -np.inf if bias <= -100 else bias
    for token in set(prompt) | set(output):
        if params.repetition_penalty != 1.0:
            up = changed[token] <= 0
            changed[token] *= params.repetition_penalty if up else 1 / params.repetition_penalty
    for token, count in Counter(output).items():
        changed[token] -= params.presence_penalty + count * params.frequency_penalty
    both = [*prompt, *output]
    for token in range(VOCABULARY):
        longer = [*both, token]
        size = params.no_repeat_ngram
        runs = [tuple(longer[at : at + size]) for at in range(len(longer) - size + 1)] if size else []
        repeats = bool(runs) and runs[-1] in runs[:-1]
        bad = any(tuple(longer[-len(run) :]) == run for run in params.bad_tokens)
        early = len(output) < params.min_tokens and token in params.ending_ids
        if repeats or bad or early:
            changed[token] = -np.inf
    return changed.astype(np.float32)


PARAMS = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, -1.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.3]),
    no_repeat_ngram=st.integers(0, 3),
    bad_tokens=st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3).map(tuple), max_size=3).map(
        tuple
    ),
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.sampled_from([-100.0, 2.5, 100.0]), max_size=3).map(
        lambda biases: tuple(biases.items())
    ),
    min_tokens=st.integers(0, 6),
    ending_ids=st.just((2, 7)),
)


@given(params=PARAMS, prompt=TOKENS, output=TOKENS)
@settings(max_examples=300, deadline=None)
def test_shaping_is_its_definition(params: SamplingParams, prompt: list[int], output: list[int]) -> None:
    row = make_row("normal", VOCABULARY, 4)
    expected = by_definition(params, prompt, output, row)
    np.testing.assert_allclose(shaped(params, array("i", prompt), output, row), expected, rtol=1e-5, atol=1e-5)


@given(params=PARAMS, prompt=TOKENS, output=TOKENS, more=TOKENS)
@settings(max_examples=200, deadline=None)
def test_a_rollback_is_as_if_the_tokens_had_never_come(
    params: SamplingParams, prompt: list[int], output: list[int], more: list[int]
) -> None:
    row = make_row("normal", VOCABULARY, 4)
    changed = row.copy()
    for shaper in shapers(params, array("i", prompt)):
        for token in (*output, *more):
            shaper.advance(token)
        shaper.rollback(len(more))
        shaper.apply(changed)
    assert changed.tolist() == shaped(params, array("i", prompt), output, row).tolist()


def test_nothing_asked_for_changes_nothing_and_keeps_no_state() -> None:
    assert shapers(SamplingParams(min_tokens=3, repetition_penalty=1.0), array("i", [1])) == []
    assert not SamplingParams(min_tokens=3).shapes


def test_a_penalised_sequence_is_reproducible_and_alone_in_its_penalties() -> None:
    row = make_row("peaked", 500, 1)
    penalised = SamplingParams(temperature=0.8, seed=3, frequency_penalty=2.0, no_repeat_ngram=2)

    def said(mates: int) -> list[int]:
        sampler = Sampler(500)
        sampler.open(SequenceSpec(0, 0, penalised, array("i", [5])))
        for mate in range(1, mates + 1):
            sampler.open(SequenceSpec(mate, 0, SamplingParams(), array("i", [5])))
        rows = np.stack([row] * (mates + 1))
        return [sampler.draw(rows, list(range(mates + 1)), [at] * (mates + 1)).tokens[0] for at in range(20)]

    alone = said(0)
    assert said(7) == alone
    pairs = list(pairwise(alone))
    assert len(set(pairs)) == len(pairs)
    assert len(set(alone)) > 5


def test_log_probabilities_are_the_models_own_whatever_the_penalties_did() -> None:
    row = make_row("normal", 50, 6)
    best = int(row.argmax())
    sampler = Sampler(50)
    sampler.open(SequenceSpec(1, 0, SamplingParams(logit_bias=((best, -100.0),), logprobs=1), array("i", [1])))
    draws = sampler.draw(row[None], [1], [0])
    logprob, top = draws.logprobs[0]
    assert draws.tokens[0] != best
    assert top[0][0] == best
    assert logprob < top[0][1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_bans_leave_nothing_there_is_no_token(temperature: float) -> None:
    everything = tuple((token, -100.0) for token in range(50))
    sampler = Sampler(50)
    sampler.open(SequenceSpec(1, 0, SamplingParams(temperature=temperature, logit_bias=everything), array("i", [1])))
    assert sampler.draw(make_row("normal", 50, 6)[None], [1], [0]).tokens == [NO_TOKEN]
