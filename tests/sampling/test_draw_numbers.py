from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.sampling.draw_numbers import RUN, DrawNumbers, take
from engines.sampling.philox import Purpose, uniforms


def number(seed: int, index: int, position: int) -> float:
    parts = (np.array([part], np.uint64) for part in (seed, index, position))
    seeds, indices, positions = parts
    return float(uniforms(seeds, indices, positions, Purpose.TOKEN)[0])


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3 * RUN)), min_size=1, max_size=8), max_size=6))
@settings(max_examples=60, deadline=None)
def test_numbers_made_ahead_are_those_made_one_by_one(calls: list[list[tuple[int, int]]]) -> None:
    """Whatever is asked in whatever order: forwards, back after a preemption, twice in a call, across the border of a run."""
    sources = [DrawNumbers(seed=2**63 + at, index=at) for at in range(4)]
    for call in calls:
        taken = take([sources[at] for at, _ in call], [position for _, position in call])
        assert taken == [number(2**63 + at, at, position) for at, position in call]


def test_numbers_are_made_once_a_run() -> None:
    source = DrawNumbers(seed=1, index=0)
    first = take([source], [0])
    made = source.numbers
    assert [take([source], [position])[0] for position in range(RUN)] == made
    assert source.numbers is made
    assert made[0] == first[0]
    take([source], [RUN])
    assert source.first == RUN
