"""The distribution that the simulated model speaks with."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from engines.simulated.hashing import mix_all
from engines.simulated.language import Language

STATES = mix_all(np.arange(4000, dtype=np.uint64))


@pytest.mark.parametrize("end_rate", [0.0, 0.1, 1.0])
def test_ends_come_as_often_as_asked(end_rate: float) -> None:
    language = Language(50, end_ids=(7, 9), end_rate=end_rate)
    said = Counter(language.likeliest_of(STATES).tolist())
    ends = said[7] + said[9]
    assert ends / len(STATES) == pytest.approx(end_rate, abs=0.02)
    assert (said[7] > 0) == (said[9] > 0) == (end_rate > 0)


def test_all_other_tokens_come_about_equally_often() -> None:
    said = Counter(Language(20, end_ids=(0,)).likeliest_of(STATES).tolist())
    assert set(said) == set(range(1, 20))
    assert min(said.values()) > 150


def test_an_alphabet_restricts_and_weighs() -> None:
    said = Counter(Language(100, alphabet=(5, 5, 5, 6)).likeliest_of(STATES).tolist())
    assert set(said) == {5, 6}
    assert said[5] / said[6] == pytest.approx(3.0, rel=0.15)


def test_one_state_at_a_time_says_what_many_say() -> None:
    language = Language(300, end_ids=(1, 2), end_rate=0.3, seed=4)
    assert [language.likeliest(state) for state in STATES[:200].tolist()] == language.likeliest_of(
        STATES[:200]
    ).tolist()


def test_the_likeliest_token_is_the_greatest_logit_alone() -> None:
    language = Language(300, end_ids=(1, 2), end_rate=0.3, seed=4)
    rows = language.logits(STATES[:300])
    assert rows.argmax(axis=1).tolist() == language.likeliest_of(STATES[:300]).tolist()
    best = np.sort(rows, axis=1)
    assert (best[:, -1] - best[:, -2] >= 0.4).all()
    assert np.isfinite(rows).all()


def test_few_tokens_carry_most_of_the_mass() -> None:
    rows = Language(5000).logits(STATES[:50]).astype(np.float64)
    mass = np.exp(rows - rows.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)
    top = np.sort(mass, axis=1)[:, -50:].sum(axis=1)
    assert np.median(top) > 0.7
    assert np.median(mass.max(axis=1)) < 0.9


def test_seeds_are_languages() -> None:
    one, same, other = (Language(300, seed=seed).likeliest_of(STATES).tolist() for seed in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"end_rate": 1.5}, "end_rate: must be 0 .. 1, got 1.5"),
        ({"end_rate": 0.5}, "end_ids"),
        ({"end_ids": (10,)}, "ids must be 0 .. 9, got 10"),
        ({"alphabet": (3, -1)}, "ids must be 0 .. 9, got -1"),
        ({"alphabet": (3,), "end_ids": (3,)}, "nothing is left to say"),
    ],
)
def test_impossible_languages_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Language(10, **options)  # type: ignore[arg-type]
