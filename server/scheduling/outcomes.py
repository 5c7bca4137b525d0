"""What a step's end means for its sequences: progress, publication, tokens, finishes."""

from __future__ import annotations

from engines.contract import Output, Row, Score, StepError, StepResult
from server.engine import FinishReason, PromptScored, TokensEvent
from server.scheduling.composition import Composition
from server.scheduling.ledger import Ledger
from server.scheduling.reception import Reception, charge
from server.scheduling.seats import Seats
from server.scheduling.sequence import Sequence
from server.scheduling.waiting_room import WaitingRoom


class Outcomes:
    """Applies outcomes and ends sequences; the only one who takes a sequence out of the house. Engine thread only."""

    __slots__ = ("_ledger", "_reception", "_room", "_seats", "closed")

    def __init__(
        self,
        *,
        ledger: Ledger[Sequence],
        room: WaitingRoom[Sequence],
        seats: Seats,
        reception: Reception,
    ) -> None:
        self._ledger = ledger
        self._room = room
        self._seats = seats
        self._reception = reception
        self.closed: list[int] = []
        """Ids that the runner may forget; the next plan tells it."""

    def succeed(self, flight: Composition, result: StepResult, now: float) -> None:
        """The step has completed."""
        counters = self._ledger.counters
        counters.steps += 1
        counters.computed_tokens += flight.tokens
        for record, planned, past, tokens in flight.traced:
            record.add_chunk(planned, now, past, tokens)
        for sequence in flight.partial:
            self._publish(sequence)
            if sequence.ending is None and sequence.computed >= sequence.limit:
                self.end(sequence, FinishReason.LENGTH, now)
        outputs = self._take_scores(flight, result) if flight.scored else result.outputs
        self._take_tokens(flight, outputs, now)
        self.end_marked(now)

    def fail(self, flight: Composition, now: float) -> None:
        """The step has failed: whoever it named ends; nothing is published."""
        for sequence in (*flight.sampled, *flight.partial):
            self.end(sequence, sequence.ending or FinishReason.ENGINE_FAILED, now)
        self.end_marked(now)

    def end_marked(self, now: float) -> None:
        """End all who are wished to."""
        for sequence in self._ledger.take_marked():
            self.end(sequence, sequence.ending or FinishReason.CANCELLED, now)

    def end(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """End a sequence, wherever it is: its seat and blocks are free afterwards, its full blocks cached."""
        record = sequence.record
        if sequence.held:
            sequence.held = False
            record.held -= 1
        else:
            if sequence.queued:
                self._room.remove(sequence)
            else:
                self._seats.leave(sequence)
            if record.held:  # it was to compute the prompt for the others: now the next one does
                self._release(next(other for other in record.sequences if other.held))
                record.cached_tokens = 0
        if sequence.opened:
            self.closed.append(sequence.id)
        computed = min(sequence.prompt_length, sequence.computed) - sequence.record.cached_tokens
        self._room.settle(sequence, charge(max(0, computed), sequence.generated))
        self._reception.learn(sequence.record.request, reason, sequence.generated)
        self._ledger.finish(sequence, reason, now)

    def _release(self, sequence: Sequence) -> None:
        sequence.held = False
        sequence.record.held -= 1
        self._room.push(sequence)

    def _take_scores(self, flight: Composition, result: StepResult) -> list[Output]:
        """Deliver the prompts' log-probabilities; the outputs of all other rows."""
        others: list[Output] = []
        for output in result.outputs:
            sequence = flight.scored.get(output.sequence)
            if sequence is None:
                others.append(output)
                continue
            record, last = sequence.record, sequence.scheduled
            first = last - len(output.logprobs) + 1
            # A preemption has some computed, and scored, again.
            known = max(0, record.scored + 1 - first)
            if sequence.ending is None and known < len(output.logprobs):
                event = PromptScored(sequence.request, first + known, output.logprobs[known:], output.top[known:])
                self._ledger.outbox.tokens.append(event)
                record.scored = last
        return others

    def _take_tokens(self, flight: Composition, outputs: list[Output], now: float) -> None:
        """The hot loop: a fixed amount of work for each running sequence."""
        add_event = self._ledger.outbox.tokens.append
        delivered = 0
        for sequence, output in zip(flight.sampled, outputs, strict=True):
            computed = sequence.computed = sequence.scheduled
            if computed >= sequence.publish_at:
                self._publish(sequence)
            if sequence.ending is not None:
                sequence.discarded += 1
                continue
            drawn = output.tokens
            if not drawn:
                self.end(sequence, FinishReason.IMPOSSIBLE, now)
                continue
            token = drawn[0]
            sequence.tokens.append(token)
            if sequence.fresh:
                self._ledger.deliver(sequence, drawn, now, output.logprobs, output.top)
                if sequence.record.held:
                    for other in sequence.record.sequences:
                        if other.held:
                            self._release(other)
            else:
                delivered += 1
                add_event(TokensEvent(sequence.request, sequence.index, drawn, output.logprobs, output.top))
            if token in sequence.stops:
                self.end(sequence, sequence.reason_of(token), now)
            elif computed + 1 >= sequence.limit:
                self.end(sequence, FinishReason.LENGTH, now)
        self._ledger.counters.generated_tokens += delivered

    def _publish(self, sequence: Sequence) -> None:
        """What was scheduled is computed: publish the blocks that are full."""
        sequence.computed = sequence.scheduled
        sequence.kv.publish(sequence.computed)
        sequence.publish_at = sequence.kv.full_at


def check_outputs(flight: Composition | None, result: StepResult) -> None:
    """Raises StepError, changing nothing, where the outcome is not what the plan asked for."""
    wanted = [] if flight is None else [(sequence.id, 1) for sequence in flight.sampled]
    if [(output.sequence, len(output.tokens)) for output in result.outputs] == wanted:
        return
    rows = [] if flight is None else [row for row in flight.rows if row.want is not None]
    if len(rows) != len(result.outputs) or not all(map(_answers, rows, result.outputs)):
        raise StepError(
            f"step {result.step}: the outputs are not one token, or the log-probabilities, for each row that asked, in the rows' order"
        )


def _answers(row: Row, output: Output) -> bool:
    """Whether ``output`` is what ``row`` asked for; a sequence whose bans leave no token gets none."""
    if output.sequence != row.sequence:
        return False
    if isinstance(row.want, Score):
        return not output.tokens and len(output.logprobs) == len(row.want.targets)
    return len(output.tokens) <= 1
