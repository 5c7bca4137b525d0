"""The oracle betrays every way of handing it the wrong history: loudly when strict, by other tokens when not."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from engines.contract import BlockCopy, PlanError, Sample
from engines.simulated import staging
from engines.simulated.step_runner import SimulatedStepRunner
from tests.simulated.rig import BLOCK, greedy, make_row, make_runner, make_spec, run


@pytest.fixture(autouse=True, params=["integers", "arrays"])
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of few tokens are worked on with integers, others with arrays: both must notice."""
    monkeypatch.setattr(staging, "FEW", 1 << 20 if request.param == "integers" else -(1 << 20))


PROMPT = list(range(100, 118))
MATE = list(range(300, 318))
SAME_MIDDLE = [*range(400, 404), *PROMPT[4:]]
"""Equal to PROMPT but for its first block."""
TABLE = [10, 11, 12, 13, 14, 15, 16, 17]
MATE_TABLE = [20, 21, 22, 23, 24, 25, 26, 27]
TWIN_TABLE = [30, 31, 32, 33, 34, 35, 36, 37]


@dataclass
class Scene:
    """Three sequences whose prompts are computed; what sequence 1 says next is at stake."""

    runner: SimulatedStepRunner
    table: list[int] = field(default_factory=lambda: list(TABLE))
    past: int = len(PROMPT)
    tokens: list[int] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)

    @classmethod
    def make(cls, *, strict: bool) -> Scene:
        runner = make_runner(strict=strict)
        opened = [make_spec(1, PROMPT), make_spec(2, MATE), make_spec(3, SAME_MIDDLE)]
        rows = [
            make_row(sequence, prompt, 0, table)
            for sequence, prompt, table in ((1, PROMPT, TABLE), (2, MATE, MATE_TABLE), (3, SAME_MIDDLE, TWIN_TABLE))
        ]
        (first, _, _) = run(runner, 1, *rows, opened=opened)
        return cls(runner, tokens=list(first.tokens))

    def go_on(self, count: int = 6) -> list[int]:
        """Feed the drawn token, and what comes of it, on whatever the scene was made into."""
        said: list[int] = []
        tokens, copies = self.tokens, self.copies
        for step in range(2, 2 + count):
            (output,) = run(self.runner, step, make_row(1, tokens, self.past, self.table), copies=copies)
            self.past += len(tokens)
            tokens, copies = list(output.tokens), []
            said += tokens
        return said


def _wrong_block(scene: Scene) -> None:
    scene.table[2] = MATE_TABLE[2]


def _swapped_blocks(scene: Scene) -> None:
    scene.table[1], scene.table[2] = scene.table[2], scene.table[1]


def _same_block_twice(scene: Scene) -> None:
    scene.table[1] = scene.table[0]


def _equal_tokens_after_another_beginning(scene: Scene) -> None:
    """What a prefix cache keyed by a block's own tokens, without those before it, would hand out."""
    scene.table[2] = TWIN_TABLE[2]


def _whole_foreign_history(scene: Scene) -> None:
    scene.table = list(MATE_TABLE)


def _unwritten_block(scene: Scene) -> None:
    scene.table[1] = 50


def _stale_share(scene: Scene) -> None:
    """A block is freed and filled by another sequence while this one still reads it."""
    run(scene.runner, 90, make_row(4, MATE[:8], 0, [TABLE[0], TABLE[1]]), opened=[make_spec(4, MATE[:8])])
    _renumber(scene)


def _failed_step_ignored(scene: Scene) -> None:
    scene.runner.scramble([TABLE[3]])


def _lost_copy(scene: Scene) -> None:
    """The table names the copy's target, but the copy was left out of the plan."""
    scene.table[4] = 40


def _copy_from_the_wrong_source(scene: Scene) -> None:
    scene.table[4] = 40
    scene.copies = [BlockCopy(source=MATE_TABLE[4], target=40)]


def _copies_in_the_wrong_order(scene: Scene) -> None:
    scene.table[4] = 41
    scene.copies = [BlockCopy(source=40, target=41), BlockCopy(source=TABLE[4], target=40)]


def _past_too_short(scene: Scene) -> None:
    """The last computed token is forgotten, and overwritten by the next."""
    scene.past -= 1


def _past_too_long(scene: Scene) -> None:
    scene.past += 1


def _past_a_block_too_long(scene: Scene) -> None:
    scene.past += BLOCK


def _not_rolled_back(scene: Scene) -> None:
    """Drafts were computed and rejected, but the past still counts them."""
    run(scene.runner, 90, make_row(1, [*scene.tokens, 7, 8, 9], scene.past, scene.table))
    _renumber(scene)
    scene.past += 3


def _renumber(scene: Scene) -> None:
    scene.runner._last_step = 1


MUTATIONS: list[Callable[[Scene], None]] = [
    _wrong_block,
    _swapped_blocks,
    _same_block_twice,
    _equal_tokens_after_another_beginning,
    _whole_foreign_history,
    _unwritten_block,
    _stale_share,
    _failed_step_ignored,
    _lost_copy,
    _copy_from_the_wrong_source,
    _copies_in_the_wrong_order,
    _past_too_short,
    _past_too_long,
    _past_a_block_too_long,
    _not_rolled_back,
]


@pytest.mark.parametrize("strict", [True, False])
def test_the_right_way_says_what_the_model_says(strict: bool) -> None:
    scene = Scene.make(strict=strict)
    expected = greedy(PROMPT, 7)
    assert scene.tokens == expected[:1]
    assert scene.go_on() == expected[1:]


@pytest.mark.parametrize("strict", [True, False])
def test_a_copy_that_is_not_lost_changes_nothing(strict: bool) -> None:
    scene = Scene.make(strict=strict)
    scene.table[4] = 40
    scene.copies = [BlockCopy(source=TABLE[4], target=40)]
    assert scene.go_on() == greedy(PROMPT, 7)[1:]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_strict_runner_refuses_it(mutate: Callable[[Scene], None]) -> None:
    scene = Scene.make(strict=True)
    mutate(scene)
    if mutate is _not_rolled_back:
        # Legal in itself: the drafts might have been accepted. Only what is said gives it away.
        assert scene.go_on() != greedy(PROMPT, 7)[1:]
        return
    with pytest.raises(PlanError, match="sequence 1: "):
        scene.go_on()


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_a_lenient_runner_says_something_else(mutate: Callable[[Scene], None]) -> None:
    scene = Scene.make(strict=False)
    mutate(scene)
    expected = greedy(PROMPT, 7)[1:]
    said = scene.go_on()
    assert said[0] != expected[0]
    assert said != expected


@pytest.mark.parametrize(
    ("mutate", "words"),
    [
        (_wrong_block, "block 22 at index 2 of its table holds other tokens than the sequence has at 8 .. 11"),
        (_swapped_blocks, "block 12 at index 1 of its table holds positions 8 .. 11, not 4 .. 7"),
        (_equal_tokens_after_another_beginning, "block 32 at index 2 .* right tokens after a different beginning"),
        (_stale_share, "block 10 at index 0 of its table holds other tokens"),
    ],
)
def test_the_refusal_names_the_block_and_what_it_holds(mutate: Callable[[Scene], None], words: str) -> None:
    scene = Scene.make(strict=True)
    mutate(scene)
    with pytest.raises(PlanError, match=words):
        scene.go_on()


def test_an_unwritten_block_is_named() -> None:
    runner = make_runner()
    run(runner, 1, make_row(1, PROMPT[:6], 0, TABLE, None), opened=[make_spec(1, PROMPT)])
    with pytest.raises(PlanError, match="block 50 at index 1 of its table is not written up to position 5"):
        run(runner, 2, make_row(1, PROMPT[6:], 6, [10, 50, 12, 13, 14]))


def test_a_chunk_out_of_place_is_refused() -> None:
    runner = make_runner()
    run(runner, 1, make_row(1, PROMPT[:6], 0, TABLE, None), opened=[make_spec(1, PROMPT)])
    with pytest.raises(PlanError, match="tokens at 6 are not the prompt's"):
        run(runner, 2, make_row(1, PROMPT[10:], 6, TABLE))
    with pytest.raises(PlanError, match="sequence 1: block 11 at index 1"):
        run(runner, 2, make_row(1, PROMPT[10:], 10, TABLE))


def test_a_chunk_out_of_place_changes_what_a_lenient_runner_says() -> None:
    runner = make_runner(strict=False)
    run(runner, 1, make_row(1, PROMPT[:6], 0, TABLE, None), opened=[make_spec(1, PROMPT)])
    run(runner, 2, make_row(1, PROMPT[12:], 6, TABLE, None))
    (output,) = run(runner, 3, make_row(1, PROMPT[6:12], 12, TABLE))
    assert list(output.tokens) != greedy(PROMPT, 1)


def test_a_block_that_does_not_add_up_is_refused() -> None:
    """Paranoid: what the incremental sums say is checked against the cells."""
    scene = Scene.make(strict=True)
    scene.runner._memory.tokens[TABLE[1], 2] += 1
    with pytest.raises(PlanError, match="block 11 holds cells that do not add up"):
        scene.go_on()


def test_blocks_computed_under_another_id_are_adopted() -> None:
    """A sequence set aside and opened anew with its first prompt finds what it had generated."""
    scene = Scene.make(strict=True)
    said = scene.tokens + scene.go_on(7)
    history = PROMPT + said
    reused = (len(history) - 1) // BLOCK * BLOCK
    assert reused > len(PROMPT)
    row = make_row(9, history[reused:], reused, [*TABLE[: reused // BLOCK], 45])
    (output,) = run(scene.runner, 50, row, opened=[make_spec(9, PROMPT)], closed=[1])
    assert list(output.tokens) == greedy(PROMPT, len(said) + 1)[-1:]


def test_adopted_blocks_must_be_coherent() -> None:
    scene = Scene.make(strict=True)
    scene.go_on(7)
    table = [*TABLE[:4], MATE_TABLE[4], 45]
    with pytest.raises(PlanError, match="sequence 9: block 24 at index 4"):
        run(scene.runner, 50, make_row(9, [1], 20, table), opened=[make_spec(9, PROMPT)])


@pytest.mark.parametrize("seed", range(30))
def test_any_single_wrong_block_of_a_random_history_shows(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - the same worlds every run
    prompts = [[draw.randrange(3, 6) for _ in range(draw.randint(5, 40))] for _ in range(2)]
    tables = [draw.sample(range(lane * 30, lane * 30 + 30), 12) for lane in range(2)]
    lenient = make_runner(strict=False)
    rows = [make_row(at, prompts[at], 0, tables[at]) for at in range(2)]
    outputs = run(lenient, 1, *rows, opened=[make_spec(at, prompts[at]) for at in range(2)])
    past = len(prompts[0])
    wrong = list(tables[0])
    index = draw.randrange((past + BLOCK - 1) // BLOCK)
    wrong[index] = draw.choice([block for block in range(60) if block not in tables[0]])
    (output,) = run(lenient, 2, make_row(0, outputs[0].tokens, past, wrong, Sample()))
    assert list(output.tokens) != greedy(prompts[0], 2)[1:]


def test_the_runner_does_not_keep_the_callers_arrays() -> None:
    runner = make_runner()
    prompt, table = array("i", PROMPT), array("i", TABLE)
    handle_rows = make_row(1, prompt, 0, table)
    run(runner, 1, handle_rows, opened=[make_spec(1, PROMPT)])
    prompt.append(1)
    table.append(1)


def _replay(seed: int) -> tuple[list[tuple[int, ...]], list[bytes]]:
    """What four sequences say, their prompts computed in random pieces side by side, and what their blocks hold in the end."""
    draw, runner = random.Random(seed), make_runner()  # noqa: S311 - the same worlds every run
    tokens = [[draw.randrange(3, 900) for _ in range(draw.randint(1, 30))] for _ in range(4)]
    opened = [make_spec(at, prompt) for at, prompt in enumerate(tokens)]
    done, said = [0] * 4, []
    for step in range(1, 25):
        rows = []
        for at in draw.sample(range(4), draw.randint(1, 4)):
            piece = tokens[at][done[at] :][: draw.randint(1, 9)]
            rows.append(make_row(at, piece, done[at], list(range(at * 16, at * 16 + 16))))
            done[at] += len(piece)
        for output in run(runner, step, *rows, opened=opened if step == 1 else ()):
            if done[output.sequence] == len(tokens[output.sequence]):
                tokens[output.sequence] += output.tokens
            said.append(output.tokens)
    return said, runner.read_blocks(range(64))


@pytest.mark.parametrize("seed", range(10))
def test_integers_and_arrays_say_the_same_and_leave_the_same_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    either = _replay(seed)
    monkeypatch.setattr(staging, "FEW", -staging.FEW)
    assert _replay(seed) == either
