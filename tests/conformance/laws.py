"""What must be equal, and how nearly."""

from __future__ import annotations

import random

from tests.conformance.cases import RunnerCase
from tests.conformance.driver import Driver, Reading

_ENOUGH = 16
"""Positions from which on a mean says something."""


def make_text(driver: Driver, length: int, seed: int) -> list[int]:
    """Token ids without any meaning, the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - the same texts every run
    return [draw.randrange(driver.runner.limits.vocab_size) for _ in range(length)]


def distance(got: Reading, expected: Reading) -> float:
    """Greatest difference of a next token's log-probability."""
    if len(got.logprobs) != len(expected.logprobs):
        raise AssertionError(f"{len(got.logprobs)} positions, expected {len(expected.logprobs)}")
    return max(abs(a - b) for a, b in zip(got.logprobs, expected.logprobs, strict=True))


def mean_distance(got: Reading, expected: Reading) -> float:
    """Rounding is small nearly everywhere; a wrong history is not, even where its greatest difference is."""
    differences = [abs(a - b) for a, b in zip(got.logprobs, expected.logprobs, strict=True)]
    return sum(differences) / len(differences)


def assert_agrees(case: RunnerCase, got: Reading, expected: Reading) -> None:
    """Log-probabilities within the engine's tolerance; the likeliest token differs only where two are nearly as likely."""
    assert distance(got, expected) <= case.tolerance
    if len(got.logprobs) >= _ENOUGH:
        assert mean_distance(got, expected) <= case.tolerance / 4
    for position, (mine, theirs) in enumerate(zip(got.tops, expected.tops, strict=True)):
        lead = theirs[0][1] - theirs[1][1]
        assert mine[0][0] == theirs[0][0] or lead <= 2 * case.tolerance, f"position {position}: {mine} but {theirs}"


def assert_same_tokens(case: RunnerCase, got: list[int], expected: list[int]) -> None:
    """Only engines that promise it are held to equal tokens; the others answer through assert_agrees."""
    if case.exact:
        assert got == expected
