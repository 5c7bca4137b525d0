"""Random legal schedules: chunks, decodes, forks by shared and copied blocks, rejected drafts, early ends, reused blocks, all mixed.

Whatever a schedule does, each sequence reads its text as it would alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from engines.contract import BlockCopy, PlanError, Row, StepError, StepPlan
from tests.conformance.cases import MAX_ROWS, MAX_STEP_TOKENS, RunnerCase
from tests.conformance.driver import Driver, Reading, Story
from tests.conformance.laws import assert_agrees

STORIES = 12
ALIVE = 6
"""At once: their blocks must fit, each text being at most LONGEST tokens."""
LONGEST = 120


@dataclass(eq=False)
class Tale:
    """A text, the sequence that reads it, and what was read from where on."""

    text: list[int]
    story: Story
    begun: int
    reading: Reading

    @property
    def over(self) -> bool:
        return self.story.past >= len(self.text) - 1


class Schedule:
    """One seed's schedule."""

    def __init__(self, driver: Driver, seed: int) -> None:
        self.driver = driver
        self.draw = random.Random(seed)  # noqa: S311 - a schedule must replay from its seed
        self.alive: list[Tale] = []
        self.done: list[Tale] = []
        self.copies: list[BlockCopy] = []
        self.left = STORIES

    def run(self) -> list[Tale]:
        while self.left or self.alive:
            if self.left and len(self.alive) < ALIVE:
                self.left -= 1
                self.begin()
            self.step()
            for tale in [tale for tale in self.alive if tale.over or self.draw.random() < 0.02]:
                self.alive.remove(tale)
                self.driver.close(tale.story)
                self.done.append(tale)
        return self.done

    def begin(self) -> None:
        donors = [tale for tale in self.alive if tale.story.past > 1]
        if donors and self.draw.random() < 0.6:
            self.fork(self.draw.choice(donors))
        else:
            text = self.tokens(self.draw.randint(2, LONGEST))
            self.alive.append(Tale(text, self.open(text), 0, Reading([], [])))

    def fork(self, donor: Tale) -> None:
        """A text that begins like the donor's: full blocks are shared, the rest of a block is copied or computed again."""
        size = self.driver.block_size
        common = self.draw.randint(1, donor.story.past)
        text = donor.text[:common] + self.tokens(self.draw.randint(2, max(2, LONGEST - common)))
        story = self.open(text)
        self.driver.share(story, donor.story, common // size)
        if common % size and self.draw.random() < 0.7:
            story.table.append(self.driver.take())
            self.copies.append(BlockCopy(source=donor.story.table[common // size], target=story.table[-1]))
            story.past = common
        self.alive.append(Tale(text, story, story.past, Reading([], [])))

    def open(self, text: list[int]) -> Story:
        """Only half of the text is its prompt, so that the rest may be drafted wrongly."""
        return self.driver.open(text[: (len(text) + 1) // 2])

    def tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(self.driver.runner.limits.vocab_size) for _ in range(count)]

    def step(self) -> None:
        going = self.draw.sample(self.alive, self.draw.randint(0, min(len(self.alive), MAX_ROWS)))
        moves: list[tuple[Story, Row]] = []
        drafted: dict[Tale, int] = {}
        for tale in going:
            if tale.story.past >= len(tale.story.spec.prompt) and self.draw.random() < 0.2:
                drafted[tale] = tale.story.past
                row = self.driver.row(tale.story, self.tokens(self.draw.randint(1, 6)))
            else:
                chunk = self.draw.choice([1, 1, 3, MAX_STEP_TOKENS // MAX_ROWS])
                row = self.driver.reading_row(tale.story, tale.text, chunk)
            moves.append((tale.story, row))
        copies, self.copies = self.copies, []
        outputs = {output.sequence: output for output in self.driver.step(*moves, copies=copies)}
        for tale in going:
            if tale in drafted:
                tale.story.past = drafted[tale]
            else:
                output = outputs[tale.story.id]
                tale.reading += Reading(list(output.logprobs), list(output.top))


def check(case: RunnerCase, driver: Driver, tales: list[Tale]) -> None:
    for tale in tales:
        count = len(tale.reading.logprobs)
        if count:
            expected = driver.read_alone(tale.text[: tale.begun + count + 1])
            assert_agrees(case, tale.reading, Reading(expected.logprobs[tale.begun :], expected.tops[tale.begun :]))


@pytest.mark.parametrize("seed", range(12))
def test_every_sequence_reads_as_alone(case: RunnerCase, driver: Driver, seed: int) -> None:
    check(case, driver, Schedule(driver, seed).run())


class Forgetful(Driver):
    """Leaves out the copies of its plans."""

    def plan(self, *rows: Row, copies: Sequence[BlockCopy] = ()) -> StepPlan:
        del copies
        return super().plan(*rows)


def test_schedules_notice_lost_copies(case: RunnerCase) -> None:
    """The test above can fail: with the copies left out, some seed disagrees, reads no numbers, or is refused by an engine that looks."""
    runner = case.make()
    driver = Forgetful(runner)
    noticed = 0
    for seed in range(4):
        try:
            check(case, driver, Schedule(driver, seed).run())
        except (AssertionError, PlanError, StepError):
            noticed += 1
            break
    runner.close()
    assert noticed
