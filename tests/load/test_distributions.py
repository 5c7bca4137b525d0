"""Distributions as typed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtest.distributions import parse_distribution
from loadtest.errors import WorkloadError


@pytest.mark.parametrize(
    ("text", "mean", "variation"),
    [
        ("512", 512, 0.0),
        ("uniform:low=0,high=100", 50, 0.577),
        ("normal:mean=1000,sd=100", 1000, 0.1),
        ("exponential:mean=300", 300, 1.0),
        ("gamma:mean=300,cv=2", 300, 2.0),
        ("lognormal:mean=300,cv=0.5", 300, 0.5),
        ("choice:100=3,500=1", 200, 0.866),
    ],
)
def test_draws_have_the_mean_and_the_variation_named(text: str, mean: float, variation: float) -> None:
    distribution = parse_distribution(text, "--x")
    rng = np.random.default_rng(5)
    draws = np.array([distribution.draw(rng) for _ in range(20_000)])
    assert draws.mean() == pytest.approx(mean, rel=0.05)
    assert draws.std() / draws.mean() == pytest.approx(variation, rel=0.1, abs=1e-9)


def test_draws_are_clipped_and_counts_are_whole_and_positive() -> None:
    rng = np.random.default_rng(0)
    wide = parse_distribution("normal:mean=10,sd=100,min=-5,max=20", "--x")
    draws = [wide.draw(rng) for _ in range(1000)]
    assert min(draws) == -5
    assert max(draws) == 20
    assert {type(wide.draw_count(rng)) for _ in range(10)} == {int}
    assert min(wide.draw_count(rng) for _ in range(1000)) == 1


def test_values_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text("10\n20\n20\n")
    distribution = parse_distribution(f"values:{path}", "--x")
    rng = np.random.default_rng(0)
    assert {distribution.draw(rng) for _ in range(100)} == {10.0, 20.0}


@pytest.mark.parametrize(
    "text",
    [
        "abc", "nan", "zipf:a=1", "lognormal:mean=5", "lognormal:mean=5,cv=0", "uniform:low=1,high=2,mean=3",
        "choice:", "choice:5=-1", "choice:5=0", "values:/no/such/file",
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_the_option(text: str) -> None:
    with pytest.raises(WorkloadError, match="--prompt-tokens"):
        parse_distribution(text, "--prompt-tokens")
