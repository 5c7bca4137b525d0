"""The rows of sequences whose known tokens are still to be computed: prompts, and what a preemption lost."""

from __future__ import annotations

from engines.contract import Row, RunnerLimits, Score, SequenceSpec, Want
from server.scheduling.budget import Allowance, StepBudget
from server.scheduling.composition import Composition
from server.scheduling.config import BatcherConfig
from server.scheduling.decodes import SAMPLE_ONE
from server.scheduling.reuse import Reuse
from server.scheduling.seating import Seating
from server.scheduling.seats import Seats
from server.scheduling.sequence import Sequence


class Prefills:
    """Cuts prompts into chunks within a step's budget, first by key first."""

    __slots__ = ("_block_size", "_budget", "_config", "_max_step_tokens", "_reuse", "_seating", "_seats")

    def __init__(
        self,
        config: BatcherConfig,
        limits: RunnerLimits,
        *,
        seats: Seats,
        seating: Seating,
        reuse: Reuse,
        budget: StepBudget,
    ) -> None:
        self._config = config
        self._max_step_tokens = limits.max_step_tokens
        self._block_size = limits.block_size
        self._seats = seats
        self._seating = seating
        self._reuse = reuse
        self._budget = budget

    def compose(self, step: Composition, waiting: int, work: int, now: float) -> None:
        """Add prefill rows to a step that has its decodes. ``waiting``: how many sequences wait in the room, with ``work`` tokens."""
        others = len(self._seats.prefilling) + waiting
        if not others:
            return
        # What a long prompt has beyond that will not be through soon in any case.
        long = self._config.long_prompt_tokens
        left = min(work, waiting * long)
        left += sum(min(long, len(each.tokens) - each.scheduled) for each in self._seats.prefilling.values())
        allowance = self._budget.allowance(step.decodes, step.context, others, left)
        for sequence, size in self._share_out(step, allowance, now, contended=others > 1).items():
            self._add_row(step, sequence, size, now)

    def _share_out(
        self, step: Composition, allowance: Allowance, now: float, *, contended: bool
    ) -> dict[Sequence, int]:
        """Who computes how many tokens. A long prompt takes its share while others want the step; leftovers go by order again."""
        at_most, long = self._config.max_partial_prefills, self._config.long_prompt_tokens
        chunks: dict[Sequence, int] = {}
        left, partial = self._max_step_tokens - step.decodes, 0
        for sequence in self._seating.in_order(step.decodes, now):
            if not self._reuse.advance(sequence, step):
                continue
            past, remaining = sequence.scheduled, len(sequence.tokens) - sequence.scheduled
            part = 1.0 / at_most if contended and remaining > long else 1.0
            size = self._chunk(sequence, 0, min(left, allowance.most(past, part)))
            if size:
                chunks[sequence] = size
                allowance.spend(past, size)
                left -= size
                partial += size < remaining
                if left <= 0 or partial >= at_most or allowance.spent:
                    break
                if contended and self._config.prefix_cache:
                    self._announce(step, sequence, size)
        for sequence, size in chunks.items():
            if left > 0 and not allowance.spent:
                past = sequence.scheduled + size
                more = self._chunk(sequence, size, min(left, allowance.most(past, 1.0)))
                allowance.spend(past, more)
                chunks[sequence] = size + more
                left -= more
        return chunks

    def _chunk(self, sequence: Sequence, have: int, bound: int) -> int:
        """Tokens that the sequence computes beyond the ``have`` already given, at most ``bound``; their blocks are in its table."""
        size, total = self._block_size, len(sequence.tokens)
        start = sequence.scheduled + have
        end = min(total, start + bound)
        if sequence.scores:  # the last token is computed by itself: its row draws, and a row does one thing
            end = min(end, total - 1, sequence.scheduled + self._config.max_score_tokens)
        sequence.kv.grow(-(-end // size))
        sequence.refresh_capacity(size)
        end = min(end, sequence.capacity)
        if end <= start:
            return 0
        return end - start

    def _announce(self, step: Composition, sequence: Sequence, size: int) -> None:
        """Let those who come later in this step know which blocks are being computed."""
        start = sequence.scheduled
        # The last block counts even when it is not filled yet: its owner goes on with it in the next step.
        last = min(-(-(start + size) // self._block_size), len(sequence.tokens) // self._block_size)
        step.computing.update(sequence.kv.digest(index) for index in range(start // self._block_size, last))

    def _add_row(self, step: Composition, sequence: Sequence, size: int, now: float) -> None:
        start, total = sequence.scheduled, len(sequence.tokens)
        end = start + size
        draws = end == total < sequence.limit
        want: Want = SAMPLE_ONE if draws else None
        if sequence.scores:
            want = Score(sequence.tokens[start + 1 : end + 1], sequence.record.request.prompt_logprobs or 0)
            step.scored[sequence.id] = sequence
        step.rows.append(Row(sequence.id, sequence.tokens[start:end], start, sequence.tables, want))
        (step.sampled if draws else step.partial).append(sequence)
        step.chunked.append(sequence)
        step.chunks.append(size)
        step.tokens += size
        step.new += size
        step.attention += size * (start + size / 2)
        sequence.scheduled = end
        record = sequence.record
        if record.planned_at is None:
            record.planned_at = now
        if record.request.traced:
            step.traced.append((record, now, start, size))
        if not sequence.opened:
            sequence.opened = True
            # A copy: ours grows, and an array that somebody views cannot.
            step.opened.append(SequenceSpec(sequence.id, sequence.index, record.request.sampling, sequence.tokens[:]))
        if end == total:
            del self._seats.prefilling[sequence.id]
