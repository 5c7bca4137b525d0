from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.contract import SequenceSpec
from engines.sampling.logprobs import log_normaliser, top_logprobs
from engines.sampling.params import SamplingParams
from engines.sampling.sampler import Sampler
from tests.sampling.rows import KINDS, Row, make_row, rows


def log_softmax(row: Row) -> list[float]:
    exact = row.astype(np.float64)
    with np.errstate(divide="ignore"):
        logprobs: list[float] = (exact - np.logaddexp.reduce(exact)).tolist()
    return logprobs


@given(rows(), st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_top_is_exact_in_order_and_ties(row: Row, count: int) -> None:
    normaliser = log_normaliser(row, np.empty_like(row))
    exact = log_softmax(row)
    best = sorted(range(len(row)), key=lambda token: (-row[token], token))[:count]
    top = top_logprobs(row, count, normaliser)
    assert [token for token, _ in top] == best
    assert [logprob for _, logprob in top] == pytest.approx([exact[token] for token in best], abs=3e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_normaliser_of_a_real_vocabulary(kind: str) -> None:
    row = make_row(kind, 49_152, 4)
    expected = float(np.logaddexp.reduce(row.astype(np.float64)))
    assert log_normaliser(row, np.empty_like(row)) == pytest.approx(expected, abs=1.5e-6)


def test_logprobs_are_of_the_raw_distribution() -> None:
    """Neither the temperature nor a filter changes what is reported."""
    row = make_row("normal", 500, 1)
    sampler = Sampler(500)
    how = SamplingParams(temperature=0.4, top_k=3, top_p=0.5, seed=9, logprobs=4)
    sampler.open(SequenceSpec(1, 0, how, array("i")))
    draws = sampler.draw(row[None], [1], [7])
    logprob, top = draws.logprobs[0]
    exact = log_softmax(row)
    assert logprob == pytest.approx(exact[draws.tokens[0]], abs=3e-6)
    assert dict(top) == {token: pytest.approx(exact[token], abs=3e-6) for token in np.argsort(-row)[:4].tolist()}


def test_only_rows_that_ask_get_logprobs() -> None:
    sampler = Sampler(300)
    for sequence, logprobs in ((1, None), (2, 0), (3, 2)):
        sampler.open(SequenceSpec(sequence, 0, SamplingParams(logprobs=logprobs), array("i")))
    draws = sampler.draw(np.stack([make_row("normal", 300, seed) for seed in range(3)]), [1, 2, 3], [0, 0, 0])
    assert set(draws.logprobs) == {1, 2}
    assert draws.logprobs[1][1] == ()
    assert len(draws.logprobs[2][1]) == 2


def test_score() -> None:
    logits = np.stack([make_row("normal", 300, seed) for seed in range(5)])
    targets = array("i", [0, 299, 7, 7, 150])
    logprobs, top = Sampler(300).score(1, logits, targets, top=3)
    exact = [log_softmax(row) for row in logits]
    assert logprobs == pytest.approx([exact[at][target] for at, target in enumerate(targets)], abs=3e-6)
    assert [[token for token, _ in likeliest] for likeliest in top] == np.argsort(-logits, axis=1)[:, :3].tolist()
    assert Sampler(300).score(1, logits, targets)[1] == [()] * 5
