"""The smallest thing that can drive a step runner: block counting, step numbers, and nothing clever."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from engines.contract import (
    BlockCopy,
    Output,
    Row,
    Sample,
    Score,
    SequenceSpec,
    StepHandle,
    StepPlan,
    StepRunner,
    TokenArray,
    Want,
)
from engines.sampling.params import SamplingParams

GREEDY = SamplingParams()


@dataclass(eq=False)
class Story:
    """One sequence as its driver knows it."""

    spec: SequenceSpec
    table: TokenArray = field(default_factory=lambda: array("i"))
    past: int = 0

    @property
    def id(self) -> int:
        return self.spec.sequence


@dataclass(frozen=True)
class Reading:
    """What an engine thinks along a given text: log-probability of each next token, and the two likeliest there."""

    logprobs: list[float]
    tops: list[tuple[tuple[int, float], ...]]

    def __add__(self, other: Reading) -> Reading:
        return Reading(self.logprobs + other.logprobs, self.tops + other.tops)


class Driver:
    """Blocks are handed out last freed first, so that old contents are met again soon."""

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner
        self.block_size = runner.limits.block_size
        self.last_step = 0
        self._last_sequence = 0
        self._free = list(range(runner.limits.block_count))
        self._holders: Counter[int] = Counter()
        self._opening: dict[int, SequenceSpec] = {}
        self._closing: list[int] = []

    # ------------------------------------------------------------------ sequences and blocks

    def open(self, prompt: Sequence[int], sampling: SamplingParams = GREEDY, index: int = 0) -> Story:
        """A new sequence; the next step that names it opens it."""
        self._last_sequence += 1
        spec = SequenceSpec(sequence=self._last_sequence, index=index, sampling=sampling, prompt=array("i", prompt))
        self._opening[spec.sequence] = spec
        return Story(spec)

    def close(self, story: Story) -> None:
        """Give the blocks back; the next step closes the sequence."""
        self.give_back(story.table)
        del story.table[:]
        if self._opening.pop(story.id, None) is None:
            self._closing.append(story.id)

    def take(self) -> int:
        block = self._free.pop()
        self._holders[block] = 1
        return block

    def give_back(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free.append(block)

    def share(self, reader: Story, donor: Story, blocks: int) -> None:
        """``reader`` begins with the first ``blocks`` full blocks of ``donor``."""
        for block in donor.table[:blocks]:
            self._holders[block] += 1
            reader.table.append(block)
        reader.past = blocks * self.block_size

    # ------------------------------------------------------------------ steps

    def row(self, story: Story, tokens: Sequence[int] | None, want: Want = None) -> Row:
        """A row that goes on where the sequence stands, with blocks for it."""
        new = 1 if tokens is None else len(tokens)
        while len(story.table) * self.block_size < story.past + new:
            story.table.append(self.take())
        carried = None if tokens is None else array("i", tokens)
        return Row(sequence=story.id, tokens=carried, past=story.past, blocks=(story.table,), want=want)

    def plan(self, *rows: Row, copies: Sequence[BlockCopy] = ()) -> StepPlan:
        self.last_step += 1
        named = [row.sequence for row in rows if row.sequence in self._opening]
        opened = [self._opening[sequence] for sequence in dict.fromkeys(named)]
        return StepPlan(step=self.last_step, rows=list(rows), copies=copies, opened=opened, closed=tuple(self._closing))

    def start(self, plan: StepPlan) -> StepHandle:
        handle = self.runner.start(plan)
        for spec in plan.opened:
            self._opening.pop(spec.sequence, None)
        self._closing = [sequence for sequence in self._closing if sequence not in plan.closed]
        return handle

    def step(self, *moves: tuple[Story, Row], copies: Sequence[BlockCopy] = ()) -> list[Output]:
        """Run the rows in one step; each sequence then stands behind its row's tokens."""
        outputs = self.start(self.plan(*(row for _, row in moves), copies=copies)).result().outputs
        for story, row in moves:
            story.past += 1 if row.tokens is None else len(row.tokens)
        return outputs

    def feed(self, story: Story, tokens: Sequence[int] | None, want: Want = None) -> Output | None:
        """One sequence alone in a step. None where nothing was wanted."""
        outputs = self.step((story, self.row(story, tokens, want)))
        return outputs[0] if outputs else None

    # ------------------------------------------------------------------ whole ways

    def read(self, story: Story, text: Sequence[int], chunk: int = 1 << 30) -> Reading:
        """Feed ``text`` but its last token in chunks, from where the sequence stands; score each next token."""
        reading = Reading([], [])
        while story.past < len(text) - 1:
            row = self.reading_row(story, text, chunk)
            (output,) = self.step((story, row))
            reading += Reading(list(output.logprobs), list(output.top))
        return reading

    def reading_row(self, story: Story, text: Sequence[int], chunk: int) -> Row:
        first = story.past
        last = min(first + chunk, len(text) - 1, first + self.runner.limits.max_step_tokens)
        return self.row(story, text[first:last], Score(targets=array("i", text[first + 1 : last + 1]), top=2))

    def read_alone(self, text: Sequence[int], chunk: int = 1 << 30) -> Reading:
        story = self.open(text)
        reading = self.read(story, text, chunk)
        self.close(story)
        return reading

    def generate(self, story: Story, prompt: Sequence[int], count: int) -> list[int]:
        """Prefill what is missing, then decode: ``count`` tokens."""
        output = self.feed(story, prompt[story.past :], Sample())
        said: list[int] = []
        while output is not None:
            said += output.tokens
            if len(said) >= count:
                break
            output = self.feed(story, None, Sample())
        return said

    def generate_alone(
        self, prompt: Sequence[int], count: int, sampling: SamplingParams = GREEDY, index: int = 0
    ) -> list[int]:
        story = self.open(prompt, sampling, index)
        said = self.generate(story, prompt, count)
        self.close(story)
        return said
