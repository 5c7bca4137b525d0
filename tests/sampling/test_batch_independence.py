"""Law 3 in the sampler: what a row gives does not depend, in any bit, on what else is drawn with it."""

from __future__ import annotations

from array import array

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.contract import SequenceSpec
from engines.sampling.params import SamplingParams
from engines.sampling.sampler import Sampler
from tests.sampling.rows import KINDS, Row, make_row, params

SIZE = 2500

batches = st.lists(
    st.tuples(
        st.builds(make_row, kind=st.sampled_from(KINDS), size=st.just(SIZE), seed=st.integers(0, 1000)),
        st.one_of(params(), st.builds(SamplingParams, logprobs=st.sampled_from([None, 0, 5]))),
        st.integers(0, 2**20),
    ),
    min_size=2,
    max_size=10,
)


def draw(batch: list[tuple[Row, SamplingParams, int]], order: list[int]) -> dict[int, object]:
    """Row -> all that came of it."""
    sampler = Sampler(SIZE)
    for place in order:
        sampler.open(SequenceSpec(place, 0, batch[place][1], array("i")))
    logits = np.stack([batch[place][0] for place in order])
    draws = sampler.draw(logits, order, [batch[place][2] for place in order])
    return {place: (draws.tokens[at], draws.logprobs.get(at)) for at, place in enumerate(order)}


@given(batches, st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_alone_shuffled_and_together(batch: list[tuple[Row, SamplingParams, int]], random: st.DataObject) -> None:
    order = list(range(len(batch)))
    together = draw(batch, order)
    random.shuffle(order)  # type: ignore[attr-defined] # hypothesis gives a random.Random
    assert draw(batch, order) == together
    for place in order:
        assert draw(batch, [place]) == {place: together[place]}


def test_memory_layout_does_not_matter() -> None:
    """Logits may lie at any address, and be a view of the library's memory."""
    batch = [(make_row(kind, SIZE, 9), SamplingParams(temperature=1.1, seed=3, logprobs=2), 5) for kind in KINDS]
    expected = draw(batch, list(range(len(batch))))
    sampler = Sampler(SIZE)
    for place, (_, how, _) in enumerate(batch):
        sampler.open(SequenceSpec(place, 0, how, array("i")))
    for shift in (1, 2, 3, 7):
        memory = np.empty(len(batch) * SIZE + shift, np.float32)
        logits = memory[shift:].reshape(len(batch), SIZE)
        logits[:] = [row for row, _, _ in batch]
        draws = sampler.draw(logits, list(range(len(batch))), [5] * len(batch))
        assert {at: (token, draws.logprobs[at]) for at, token in enumerate(draws.tokens)} == expected
