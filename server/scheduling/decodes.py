"""The rows of sequences that continue: one token each, every step."""

from __future__ import annotations

from engines.contract import Row, Sample
from server.scheduling.composition import Composition
from server.scheduling.policies import VictimPolicy
from server.scheduling.seats import Seats
from server.scheduling.sequence import Sequence

SAMPLE_ONE = Sample()


class Decodes:
    """Prepares decode rows ahead, while the step before still runs, and completes them once its outcome is known.

    A row prepared ahead says "the token that the previous step draws", so it is right for whoever survives that step.
    """

    __slots__ = ("_block_size", "_drafted", "_lagging", "_rows", "_seats", "_sequences", "_source", "_victims")

    def __init__(self, seats: Seats, victims: VictimPolicy, block_size: int) -> None:
        self._seats = seats
        self._victims = victims
        self._block_size = block_size
        self._source: list[Sequence] = []
        self._rows: list[Row] = []
        self._sequences: list[Sequence] = []
        self._lagging: list[Sequence] = []
        self._drafted = False

    def follow(self, sampled: list[Sequence]) -> None:
        """A step was launched that draws a token for each of these: they are the next step's decodes."""
        self._source = sampled
        self._rows = []
        self._sequences = []
        self._lagging = []
        self._drafted = False

    def draft(self) -> None:
        """Prepare the rows that need no preemption. Idempotent; may allocate blocks, changes nothing else."""
        if self._drafted:
            return
        self._drafted = True
        add_row, add_sequence = self._rows.append, self._sequences.append
        for sequence in self._source:
            past = sequence.scheduled
            # Drawing one more would reach the limit: the step in flight ends it for its length.
            if past + 1 >= sequence.limit or not sequence.seated:
                continue
            if past >= sequence.capacity and not self._grow(sequence):
                self._lagging.append(sequence)
                continue
            add_row(Row(sequence.id, None, past, sequence.tables, SAMPLE_ONE))
            add_sequence(sequence)

    def compose(self, step: Composition) -> None:
        """Put the rows of all who survived the previous step into the plan; preempt where blocks ran out."""
        self.draft()
        for sequence in self._lagging:
            if sequence.seated and self._make_room(sequence):
                self._rows.append(Row(sequence.id, None, sequence.scheduled, sequence.tables, SAMPLE_ONE))
                self._sequences.append(sequence)
        rows, sequences = self._rows, self._sequences
        if any(not sequence.seated for sequence in sequences):
            rows = [row for row, sequence in zip(rows, sequences, strict=True) if sequence.seated]
            sequences = [sequence for sequence in sequences if sequence.seated]
        context = 0
        for sequence in sequences:
            sequence.scheduled += 1
            context += sequence.scheduled
        step.rows = rows
        step.sampled = sequences
        step.tokens = step.decodes = len(rows)
        step.context = context
        self.follow([])

    def _grow(self, sequence: Sequence) -> bool:
        sequence.kv.name(sequence.scheduled)
        if not sequence.kv.grow(sequence.scheduled // self._block_size + 1):
            return False
        sequence.capacity += self._block_size
        return True

    def _make_room(self, sequence: Sequence) -> bool:
        """Preempt until the sequence has its block. False when it was itself the one to give way."""
        while not self._grow(sequence):
            victim = self._victims.choose(self._seats.running.values())
            self._seats.preempt(victim)
            if victim is sequence:
                return False
        return True
