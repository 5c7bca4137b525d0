"""The numbers that a sequence's tokens are drawn at, made a run of positions ahead.

Eighty NumPy calls make one number or ten thousand at nearly the same cost, so they are made for many positions at a time. Nothing
depends on it: a number is a function of (seed, sequence index, position, purpose), in whatever order positions are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engines.sampling.philox import Purpose, uniforms

RUN = 64


class DrawNumbers:
    """The token numbers of one sequence, of the run of positions last asked for."""

    __slots__ = ("first", "index", "numbers", "seed")

    def __init__(self, seed: int, index: int) -> None:
        self.seed = seed
        self.index = index
        self.first = -1
        self.numbers: list[float] = []

    def knows(self, position: int) -> bool:
        return position - position % RUN == self.first


def take(sources: Sequence[DrawNumbers], positions: Sequence[int]) -> list[float]:
    """The number in [0, 1) of each source at its position. A source may come several times."""
    _make({id(source): (source, at) for source, at in zip(sources, positions, strict=True) if not source.knows(at)})
    taken = []
    for source, at in zip(sources, positions, strict=True):
        if not source.knows(at):  # its positions in this call lie on both sides of a border
            _make({0: (source, at)})
        taken.append(source.numbers[at - source.first])
    return taken


def _make(stale: dict[int, tuple[DrawNumbers, int]]) -> None:
    """Give each source the run that its position lies in, all in one go."""
    if not stale:
        return
    sources = [source for source, _ in stale.values()]
    firsts = [at - at % RUN for _, at in stale.values()]
    shape = (len(sources), RUN)
    numbers = uniforms(
        np.broadcast_to(np.array([[source.seed] for source in sources], np.uint64), shape),
        np.broadcast_to(np.array([[source.index] for source in sources], np.uint64), shape),
        np.add.outer(np.array(firsts, np.uint64), np.arange(RUN, dtype=np.uint64)),
        Purpose.TOKEN,
    )
    for source, first, row in zip(sources, firsts, numbers.tolist(), strict=True):
        source.first, source.numbers = first, row
