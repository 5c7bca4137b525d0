"""The cost model finds the machine's truth from noisy steps, whatever it started from."""

from __future__ import annotations

import random

import msgspec
import pytest

from engines.manifest import StepProfile
from engines.simulated.cost import PROFILES, StepShape
from server.scheduling.cost import StepCost

TRUTH = PROFILES["gpu"]


def profile(factor: float = 1.0) -> StepProfile:
    return StepProfile(
        fixed=TRUTH.fixed * factor,
        per_new_token=TRUTH.per_new_token * factor,
        per_decode=TRUTH.per_decode * factor,
        per_decode_context=TRUTH.per_decode_context * factor,
        per_attention=TRUTH.per_attention * factor,
        machine="test",
        relative_error=0.0,
    )


def shapes(seed: int, count: int) -> list[StepShape]:
    rng = random.Random(seed)  # noqa: S311 - replays
    made = []
    for _ in range(count):
        new, decodes = rng.choice((0, 0, rng.randint(1, 3000))), rng.randint(1, 64)
        made.append(StepShape(new, decodes, decodes * rng.randint(100, 4000), new * rng.uniform(0, 8000)))
    return made


def teach(cost: StepCost, seed: int, count: int, noise: float = 0.05, spike: float = 0.0) -> None:
    rng = random.Random(seed)  # noqa: S311 - replays
    truth = msgspec.structs.replace(TRUTH, noise=noise)
    for shape in shapes(seed, count):
        seconds = truth.seconds(shape, rng)
        if rng.random() < spike:
            seconds *= 30.0
        cost.observe(shape.new, shape.decodes, shape.decode_context, shape.attention, seconds)


def worst_error(cost: StepCost) -> float:
    """Median relative error over fresh shapes, without noise."""
    errors = sorted(
        abs(cost.seconds(s.new, s.decodes, s.decode_context, s.attention) / TRUTH.expected(s) - 1.0)
        for s in shapes(99, 200)
    )
    return errors[len(errors) // 2]


def test_a_good_profile_is_right_from_the_first_step() -> None:
    assert worst_error(StepCost(profile())) < 1e-9


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_a_profile_of_another_machine_is_corrected(factor: float) -> None:
    cost = StepCost(profile(factor))
    assert worst_error(cost) > 0.5
    teach(cost, 1, 1500)
    assert worst_error(cost) < 0.05


def test_without_a_profile_the_truth_is_found_too() -> None:
    cost = StepCost()
    teach(cost, 2, 1500)
    assert worst_error(cost) < 0.05


def test_stalls_of_the_machine_do_not_bend_the_model() -> None:
    cost = StepCost(profile())
    teach(cost, 3, 2000, spike=0.03)
    assert worst_error(cost) < 0.1


def test_no_coefficient_ever_becomes_negative() -> None:
    cost = StepCost(profile())
    rng = random.Random(4)  # noqa: S311 - replays
    for _ in range(2000):
        # Decodes that cost less the more there are: a negative coefficient would fit best.
        decodes = rng.randint(1, 64)
        cost.observe(0, decodes, decodes * 100, 0.0, 0.05 - decodes * 5e-4)
    assert min(cost.coefficients) >= 0.0


def test_terms_that_the_traffic_does_not_exercise_stay_where_they_were() -> None:
    cost = StepCost(profile())
    rng = random.Random(5)  # noqa: S311 - replays
    for _ in range(3000):
        decodes = rng.randint(1, 64)
        shape = StepShape(0, decodes, decodes * 1000, 0.0)
        cost.observe(0, decodes, shape.decode_context, 0.0, TRUTH.seconds(shape, rng))
    assert cost.coefficients[1] == pytest.approx(TRUTH.per_new_token)
    assert cost.coefficients[4] == pytest.approx(TRUTH.per_attention)


@pytest.mark.parametrize("past", [0, 500, 100_000])
@pytest.mark.parametrize("seconds", [1e-5, 0.01, 0.5])
def test_the_chunk_is_the_largest_that_fits(seconds: float, past: int) -> None:
    cost = StepCost(profile())
    tokens = cost.chunk(seconds, past)
    assert cost.prompt_seconds(tokens, past) <= seconds * (1 + 1e-9)
    assert cost.prompt_seconds(tokens + 1, past) > seconds * (1 - 1e-6)


def test_what_was_predicted_adds_up_before_it_is_learned_from() -> None:
    cost = StepCost()
    expected = 0.0
    for tokens in (1, 64, 512, 3):
        expected += cost.seconds(tokens, 2, 100.0, 50.0)
        cost.observe(tokens, 2, 100.0, 50.0, 0.01)
    assert cost.predicted == pytest.approx(expected)


def test_a_measurement_of_no_time_teaches_nothing() -> None:
    cost = StepCost(profile())
    for _ in range(100):
        cost.observe(5, 5, 5.0, 5.0, 0.0)
    assert worst_error(cost) < 1e-9
