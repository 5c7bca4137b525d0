"""The runner driven bare: the least that any server must do, as the yardstick for what ours adds.

Static block tables, first come first served, decodes first and then prefill chunks, no cache, no wire, no second thread.
Input staging and sampling are the runner's own and thus included.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Sequence

import msgspec

from engines.contract import Row, Sample, SequenceSpec, StepPlan, StepRunner, TokenArray
from engines.sampling.params import SamplingParams


class BareStream(msgspec.Struct):
    """One sequence and when its tokens appeared, in ``time.perf_counter()`` seconds."""

    id: int
    prompt: TokenArray
    blocks: TokenArray
    past: int = 0
    ended: bool = False
    tokens: list[int] = msgspec.field(default_factory=list)
    times: list[float] = msgspec.field(default_factory=list)


class BareRun(msgspec.Struct, frozen=True):
    started: float
    streams: list[BareStream]

    @property
    def ttfts(self) -> list[float]:
        return [stream.times[0] - self.started for stream in self.streams]

    @property
    def gaps(self) -> list[float]:
        return [b - a for stream in self.streams for a, b in itertools.pairwise(stream.times)]

    @property
    def tokens_per_second(self) -> float:
        end = max(stream.times[-1] for stream in self.streams)
        return sum(len(stream.tokens) for stream in self.streams) / (end - self.started)


class BareLoop:
    """Runs sets of prompts one after another on one runner. Not thread-safe."""

    def __init__(self, runner: StepRunner, step_tokens: int, end_ids: frozenset[int], first_sequence: int = 0) -> None:
        self._runner = runner
        self._end_ids = end_ids
        self._budget = min(step_tokens, runner.limits.max_step_tokens)
        self._step = 0
        self._sequences = first_sequence

    def run(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> BareRun:
        """Every prompt at once, greedily, each until an end token or ``max_tokens``."""
        streams = self._seat(prompts, max_tokens)
        opened = [SequenceSpec(s.id, 0, SamplingParams(), s.prompt) for s in streams]
        run = BareRun(time.perf_counter(), streams)
        while rows := self._rows(streams):
            self._step += 1
            result = self._runner.start(StepPlan(self._step, rows, opened=opened)).result()
            now = time.perf_counter()
            opened = []
            by_id = {stream.id: stream for stream in streams}
            for row in rows:
                by_id[row.sequence].past += 1 if row.tokens is None else len(row.tokens)
            for output in result.outputs:
                stream = by_id[output.sequence]
                stream.tokens.extend(output.tokens)
                stream.times.append(now)
                stream.ended = len(stream.tokens) >= max_tokens or output.tokens[-1] in self._end_ids
        self._step += 1
        self._runner.start(StepPlan(self._step, [], closed=[s.id for s in streams])).result()
        return run

    def _seat(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[BareStream]:
        size = self._runner.limits.block_size
        streams: list[BareStream] = []
        block = 0
        for prompt in prompts:
            need = -(-(len(prompt) + max_tokens) // size)
            self._sequences += 1
            streams.append(BareStream(self._sequences, array("i", prompt), array("i", range(block, block + need))))
            block += need
        return streams

    def _rows(self, streams: list[BareStream]) -> list[Row]:
        rows = []
        budget = self._budget
        for stream in streams:
            if stream.tokens and not stream.ended:
                rows.append(Row(stream.id, array("i", stream.tokens[-1:]), stream.past, (stream.blocks,), Sample()))
                budget -= 1
        for stream in streams:
            if not stream.tokens and budget > 0:
                chunk = stream.prompt[stream.past : stream.past + budget]
                whole = stream.past + len(chunk) == len(stream.prompt)
                rows.append(Row(stream.id, chunk, stream.past, (stream.blocks,), Sample() if whole else None))
                budget -= len(chunk)
        return rows
