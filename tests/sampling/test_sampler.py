from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest

from engines.contract import PlanError, SequenceSpec, StepError
from engines.sampling.constraint import Constraint, GuideError, Masks
from engines.sampling.params import Guide, SamplingParams
from engines.sampling.sampler import NO_TOKEN, Sampler
from tests.sampling.rows import make_row

VOCABULARY = 1000


def spec(sequence: int = 1, how: SamplingParams | None = None, index: int = 0) -> SequenceSpec:
    return SequenceSpec(sequence, index, how or SamplingParams(), array("i", [1, 2]))


def seeded(seed: int = 5, temperature: float = 1.0) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed)


def opened(*specs: SequenceSpec) -> Sampler:
    sampler = Sampler(VOCABULARY)
    for one in specs:
        sampler.open(one)
    return sampler


def tokens_along(sampler: Sampler, sequence: int, positions: range, seed: int = 0) -> list[int]:
    row = make_row("normal", VOCABULARY, seed)
    return [sampler.draw(row[None], [sequence], [position]).tokens[0] for position in positions]


def test_greedy_takes_the_likeliest_and_the_lowest_id_among_equals() -> None:
    rows = np.zeros((3, VOCABULARY), np.float32)
    rows[0, [700, 30, 31]] = 2.0
    rows[1, 999] = 1e-6
    assert opened(spec()).draw(rows, [1, 1, 1], [4, 5, 6]).tokens == [30, 999, 0]


def test_top_one_is_greedy() -> None:
    row = make_row("ties", VOCABULARY, 3)
    assert opened(spec(how=SamplingParams(temperature=5.0, top_k=1))).draw(row[None], [1], [0]).tokens == [
        int(row.argmax())
    ]


def test_a_seed_replays_and_another_does_not() -> None:
    first = tokens_along(opened(spec(how=seeded())), 1, range(30))
    assert tokens_along(opened(spec(how=seeded())), 1, range(30)) == first
    assert tokens_along(opened(spec(how=seeded(6))), 1, range(30)) != first


def test_the_sequence_index_is_part_of_a_draw_and_the_sequence_id_is_not() -> None:
    first = tokens_along(opened(spec(1, seeded())), 1, range(30))
    assert tokens_along(opened(spec(77, seeded())), 77, range(30)) == first
    assert tokens_along(opened(spec(1, seeded(), index=1)), 1, range(30)) != first


def test_a_draw_depends_on_its_position_and_not_on_what_was_drawn_before() -> None:
    sampler = opened(spec(how=seeded()))
    forwards = tokens_along(sampler, 1, range(20))
    assert tokens_along(sampler, 1, range(19, -1, -1)) == forwards[::-1]


def test_chi_square_of_seeded_draws() -> None:
    row = make_row("normal", 40, 8)
    sampler = Sampler(40)
    sampler.open(spec(how=seeded(123, 1.2)))
    count = 20_000
    drawn = sampler.draw(np.broadcast_to(row, (count, 40)), [1] * count, list(range(count))).tokens
    expected = np.exp(row.astype(np.float64) / 1.2)
    expected *= count / expected.sum()
    chi_square = float(((np.bincount(drawn, minlength=40) - expected) ** 2 / expected).sum())
    assert 39 - 4 * np.sqrt(78) < chi_square < 39 + 4 * np.sqrt(78)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "how", [SamplingParams(), seeded(), SamplingParams(temperature=1.0, top_k=5), SamplingParams(logprobs=2)]
)
def test_a_row_that_is_no_distribution_is_an_error_that_names_it(bad: float, how: SamplingParams) -> None:
    rows = np.stack([make_row("normal", VOCABULARY, seed) for seed in range(3)])
    rows[1, 17] = bad
    sampler = opened(spec(1), spec(2, how), spec(3))
    with pytest.raises(StepError, match=r"sequence 2: the greatest logit of row 1 must be finite, got (nan|inf)"):
        sampler.draw(rows, [1, 2, 3], [0, 0, 0])
    with pytest.raises(StepError, match="sequence 2: the greatest logit of row 0"):
        sampler.score(2, rows[1:2], [5])


def test_nothing_possible_is_an_error_and_some_things_impossible_is_not() -> None:
    row = np.full((1, VOCABULARY), -np.inf, np.float32)
    sampler = opened(spec(how=seeded()))
    with pytest.raises(StepError, match="must be finite, got -inf"):
        sampler.draw(row, [1], [0])
    row[0, 5] = 0.0
    assert sampler.draw(row, [1], [0]).tokens == [5]


def test_open_and_close() -> None:
    sampler = opened(spec(1))
    assert 1 in sampler
    assert len(sampler) == 1
    with pytest.raises(PlanError, match="sequence 1 is open already"):
        sampler.open(spec(1))
    sampler.close(1)
    assert 1 not in sampler
    with pytest.raises(PlanError, match="sequence 1 is not open"):
        sampler.close(1)


def test_integrity_names_impossible_parameters() -> None:
    sampler = opened(spec(1))
    sampler.check_integrity()
    sampler.open(spec(2, SamplingParams(top_p=0.0)))
    with pytest.raises(StepError, match="sequence 2 holds impossible sampling parameters"):
        sampler.check_integrity()


class OnlyEven:
    """A constraint: even tokens, and no token twice."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def advance(self, token: int) -> None:
        self.seen.append(token)

    def rollback(self, count: int) -> None:
        del self.seen[-count:]


class EvenHouse:
    """Makes one OnlyEven a guide; ``nothing``: and permits no token at all."""

    def __init__(self, *, nothing: bool = False) -> None:
        self.opened: list[OnlyEven] = []
        self.nothing = nothing

    def open(self, guide: Guide) -> Constraint:
        if guide.text == "bad":
            raise GuideError("is bad")
        self.opened.append(OnlyEven())
        return self.opened[-1]

    def fill(self, constraints: Sequence[Constraint]) -> Masks:
        masks = np.zeros((len(constraints), VOCABULARY), np.bool_)
        for mask, constraint in zip(masks, constraints, strict=True):
            assert isinstance(constraint, OnlyEven)
            mask[::2] = not self.nothing
            mask[constraint.seen] = False
        return masks


def guided(how: SamplingParams, text: str = "even") -> SamplingParams:
    return msgspec.structs.replace(how, guide=Guide("grammar", text))


@pytest.mark.parametrize("how", [SamplingParams(), seeded(4), SamplingParams(temperature=1.0, top_k=3, logprobs=1)])
def test_a_constraint_masks_its_rows_and_follows_their_tokens(how: SamplingParams) -> None:
    house = EvenHouse()
    sampler = Sampler(VOCABULARY, house)
    sampler.open(spec(1, guided(how)))
    sampler.open(spec(2))
    sampler.open(spec(3, guided(how)))
    row = make_row("peaked", VOCABULARY, 2)
    rows = np.stack([row, row, row])
    drawn = [sampler.draw(rows, [1, 2, 3], [position] * 3).tokens for position in range(6)]
    for place, constraint in ((0, house.opened[0]), (2, house.opened[1])):
        constrained = [tokens[place] for tokens in drawn]
        assert constrained == constraint.seen
        assert len(set(constrained)) == 6
        assert all(token % 2 == 0 for token in constrained)
    assert all(tokens[1] == row.argmax() for tokens in drawn)
    assert (rows[0] == row).all()


def test_where_nothing_may_come_only_that_sequence_is_stuck() -> None:
    sampler = Sampler(VOCABULARY, EvenHouse(nothing=True))
    sampler.open(spec(1, guided(SamplingParams(logprobs=2))))
    sampler.open(spec(2, seeded()))
    rows = np.stack([make_row("normal", VOCABULARY, 0)] * 2)
    alone = opened(spec(2, seeded())).draw(rows[1:], [2], [0])
    both = sampler.draw(rows, [1, 2], [0, 0])
    assert both.tokens == [NO_TOKEN, alone.tokens[0]]
    assert both.logprobs == {}


def test_a_guide_is_refused_where_nobody_compiles_guides_or_it_does_not_compile() -> None:
    with pytest.raises(PlanError, match="takes none"):
        Sampler(VOCABULARY).open(spec(1, guided(SamplingParams())))
    with pytest.raises(PlanError, match="sequence 1 is bad"):
        Sampler(VOCABULARY, EvenHouse()).open(spec(1, guided(SamplingParams(), "bad")))
