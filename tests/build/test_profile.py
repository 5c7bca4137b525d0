"""The fit is the optimum under its constraint; the measured shapes determine every coefficient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from build_scripts.bill import BLOCK_SIZE, verification_blocks
from build_scripts.driver import Driver
from build_scripts.profile import Shape, fit, measure_profile, nonnegative_least_squares, shapes
from build_scripts.verify import SELF_SEQUENCES, SELF_TOKENS
from engines.contract import Output, RunnerLimits, StepRunner

coefficient = st.floats(0, 10)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(5, 30))
def test_the_fit_meets_the_conditions_of_the_optimum(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    matrix, target = random.random((rows, 5)), random.standard_normal(rows) + 1
    found = nonnegative_least_squares(matrix, target)
    gradient = matrix.T @ (matrix @ found - target)
    # Karush, Kuhn, Tucker: nowhere negative; flat where a coefficient is used, and nothing to gain by using another.
    assert np.all(found >= 0)
    assert np.all(gradient >= -1e-8)
    assert np.all(np.abs(gradient * found) <= 1e-8)


@settings(max_examples=100, deadline=None)
@given(st.tuples(coefficient, coefficient, coefficient, coefficient, coefficient))
def test_a_cost_of_this_form_is_found_from_the_measured_shapes(units: tuple[float, ...]) -> None:
    true = np.array(units) * (1e-3, 1e-5, 1e-5, 1e-8, 1e-10)
    features = [shape.features() for shape in shapes(1024, 2048)]
    seconds = np.array(features) @ true + 1e-6
    profile = fit(features, seconds.tolist(), threads=2)
    found = (
        profile.fixed,
        profile.per_new_token,
        profile.per_decode,
        profile.per_decode_context,
        profile.per_attention,
    )
    np.testing.assert_allclose(np.array(features) @ np.array(found), seconds, rtol=1e-6)
    np.testing.assert_allclose(found, true + np.array([1e-6, 0, 0, 0, 0]), rtol=1e-4, atol=1e-12)
    assert profile.relative_error < 1e-6


def test_features_are_the_formulas_terms() -> None:
    # 64 new tokens after 448, beside 8 decodes that each see 256 earlier tokens and themselves.
    assert Shape(64, 448, 8, 256).features() == (1.0, 64.0, 8.0, 8 * 257.0, 64 * (448 + 32.0))


@pytest.mark.parametrize(("context", "tokens"), [(1024, 2048), (256, 2048), (96, 64), (80, 32)])
def test_only_shapes_that_fit_are_measured(context: int, tokens: int) -> None:
    chosen = shapes(context, tokens)
    assert chosen
    for shape in chosen:
        assert shape.past + shape.new <= context
        assert shape.context + 1 <= context
        assert shape.new + shape.decodes <= tokens


class _Untimed(Driver):
    """Runs nothing; counts the blocks that are out at once."""

    def __init__(self, limits: RunnerLimits) -> None:
        super().__init__(cast("StepRunner", _Limited(limits)))
        self.most = 0

    def _run(self, rows: list[Any], closed: Sequence[int], opened: Sequence[Any] = ()) -> tuple[list[Output], float]:
        self.most = max(self.most, self.limits.block_count - self.free_blocks)
        return [], 0.01


class _Limited:
    def __init__(self, limits: RunnerLimits) -> None:
        self.limits = limits


@pytest.mark.parametrize("context", [128, 256, 1000, 1024, 8192])
def test_a_proof_has_the_blocks_that_it_asks_for_and_few_to_spare(context: int) -> None:
    blocks = verification_blocks(context)
    driver = _Untimed(
        RunnerLimits(
            vocab_size=100,
            block_size=BLOCK_SIZE,
            block_count=blocks,
            bytes_per_block=1,
            max_rows=256,
            max_step_tokens=2048,
            max_context=context,
            kv_groups=(),
        )
    )
    measure_profile(driver, 1, lambda _done, _total: None)
    assert blocks - 2 <= driver.most <= blocks
    assert SELF_SEQUENCES * -(-min(SELF_TOKENS, context) // BLOCK_SIZE) <= blocks
    assert driver.free_blocks == blocks
