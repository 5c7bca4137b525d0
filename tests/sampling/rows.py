"""Rows of logits of every kind that has ever mattered, and sampling parameters to go with them, as hypothesis strategies."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from engines.sampling.params import SamplingParams

Row = npt.NDArray[np.float32]
KINDS = ("peaked", "normal", "flat", "ties", "equal", "steps", "forbidden")


def make_row(kind: str, size: int, seed: int) -> Row:
    generator = np.random.default_rng(seed)
    match kind:
        case "peaked":
            row = generator.standard_normal(size) * 6
        case "normal":
            row = generator.standard_normal(size) * 2
        case "flat":
            row = generator.standard_normal(size) * 0.01
        case "ties":
            row = generator.integers(-3, 4, size).astype(np.float64)
        case "equal":
            row = np.full(size, 1.25)
        case "steps":
            row = -np.sort(generator.exponential(3.0, size))
        case "forbidden":
            row = generator.standard_normal(size) * 3
            row[generator.random(size) < 0.5] = -np.inf
            row[generator.integers(size)] = 0.5
        case _:
            raise ValueError(kind)
    return row.astype(np.float32)


def rows(max_size: int = 3000) -> st.SearchStrategy[Row]:
    return st.builds(
        make_row,
        kind=st.sampled_from(KINDS),
        size=st.one_of(st.integers(1, 40), st.integers(1, max_size)),
        seed=st.integers(0, 2**32 - 1),
    )


def params(*, filtered: bool = False) -> st.SearchStrategy[SamplingParams]:
    """Drawn, never greedy; with ``filtered`` at least one filter is on."""
    built = st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.05, 0.5, 0.8, 1.0, 1.7, 20.0]),
        top_k=st.sampled_from([0, 0, 2, 3, 7, 50, 700, 1500, 10_000]),
        top_p=st.sampled_from([1.0, 1.0, 0.001, 0.3, 0.5, 0.9, 0.95, 0.999]),
        min_p=st.sampled_from([0.0, 0.0, 1e-6, 0.02, 0.5, 1.0]),
        seed=st.integers(0, 2**64 - 1),
    )
    return built.filter(lambda p: p.top_k > 0 or p.top_p < 1 or p.min_p > 0) if filtered else built
