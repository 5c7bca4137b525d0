"""The judge is judged: whichever law the house is made to break, random worlds notice it within a few dozen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engines.contract import EngineError
from engines.simulated.draws import TokenDrawer
from server.engine import FinishReason
from server.kv import sequence_blocks
from server.kv.block_pool import BlockPool, IntegrityError
from server.kv.eviction import ReusedStayLonger
from server.kv.prefix_cache import PrefixCache
from server.kv.sequence_blocks import SequenceBlocks
from server.scheduling import rank_sums
from server.scheduling.composition import Composition
from server.scheduling.ledger import Ledger
from server.scheduling.outbox import Outbox
from server.scheduling.outcomes import Outcomes
from server.scheduling.seats import Seats
from server.scheduling.sequence import Sequence
from server.scheduling.tenants import ClassQueue
from tests.scheduling.random_world import RandomWorld

ENOUGH = 60
"""Worlds within which each is found; most need one or two."""
Patch = Callable[[Any, str, Callable[..., Any]], None]


def _leak(patch: Patch) -> None:
    """A sequence gives back all its blocks but the last."""
    patch(PrefixCache, "release", lambda true, self, blocks: true(self, list(blocks)[:-1]))


def _endless_quarantine(patch: Patch) -> None:
    """What rests until a step is over rests for ever."""
    patch(BlockPool, "complete_step", lambda _true, _self, _step: None)


def _early_publication(patch: Patch) -> None:
    """Blocks are published with a token more than was computed."""
    patch(SequenceBlocks, "publish", lambda true, self, computed: true(self, min(computed + 1, len(self._tokens))))


def _unchained_names(patch: Patch) -> None:
    """A block's name says nothing of what stands before it."""
    patch(sequence_blocks, "block_digest", lambda true, _parent, tokens: true(b"", tokens))


def _no_copies(patch: Patch) -> None:
    """The plan forgets to copy the blocks that rows go on in."""

    def plan(true: Callable[..., Any], self: Composition) -> Any:
        self.copies.clear()
        return true(self)

    patch(Composition, "plan", plan)


def _computed_after_preemption(patch: Patch) -> None:
    """Who was set aside believes that its tokens are still computed."""

    def preempt(true: Callable[..., Any], self: Seats, sequence: Sequence) -> None:
        computed = sequence.computed
        true(self, sequence)
        sequence.computed = sequence.scheduled = computed

    patch(Seats, "preempt", preempt)


def _forgotten_leaf(patch: Patch) -> None:
    """One in eight cached blocks can never be evicted."""
    patch(ReusedStayLonger, "add", lambda true, self, node: None if node.block % 8 == 3 else true(self, node))


def _miscounted_work(patch: Patch) -> None:
    """Who leaves the room takes no work along."""
    patch(rank_sums, "minus", lambda true, one, other: true(one, other._replace(work=0)))


def _miscounted_ranks(patch: Patch) -> None:
    """Who leaves the room from its middle stays among those that the forecast reads by rank."""

    def remove(true: Callable[..., Any], self: ClassQueue[Any], waiter: Any) -> None:
        ranks = self.ranks._root
        true(self, waiter)
        self.ranks._root = ranks

    patch(ClassQueue, "remove", remove)


def _two_ends(patch: Patch) -> None:
    """The last event of a request comes twice."""

    def collect(true: Callable[..., Any], self: Outbox) -> list[Any]:
        events = true(self)
        return [*events, events[-1]] if events else []

    patch(Outbox, "collect", collect)


def _late_tokens(patch: Patch) -> None:
    """Tokens that came too late are not counted."""

    def finish(true: Callable[..., Any], self: Ledger[Any], sequence: Any, reason: FinishReason, now: float) -> None:
        sequence.discarded = 0
        true(self, sequence, reason, now)

    patch(Ledger, "finish", finish)


def _unheeded_stops(patch: Patch) -> None:
    """An end of text is called a length."""

    def end(true: Callable[..., Any], self: Outcomes, sequence: Sequence, reason: FinishReason, now: float) -> None:
        true(self, sequence, FinishReason.LENGTH if reason is FinishReason.END else reason, now)

    patch(Outcomes, "end", end)


def _mates_matter(patch: Patch) -> None:
    """What is drawn depends on what else the step draws."""
    patch(TokenDrawer, "draw", lambda true, self, draws: true(self, draws[:1] * len(draws)))


def _kept_seat(patch: Patch) -> None:
    """Who has ended is not taken from the running ones."""

    def leave(true: Callable[..., Any], self: Seats, sequence: Sequence) -> None:
        true(self, sequence)
        self.by_class[0] += 1

    patch(Seats, "leave", leave)


SABOTAGES: tuple[Callable[[Patch], None], ...] = (
    _leak,
    _endless_quarantine,
    _early_publication,
    _unchained_names,
    _no_copies,
    _computed_after_preemption,
    _forgotten_leaf,
    _miscounted_work,
    _miscounted_ranks,
    _two_ends,
    _late_tokens,
    _unheeded_stops,
    _mates_matter,
    _kept_seat,
)


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__.strip("_"))
def test_random_worlds_notice_a_broken_law(sabotage: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def patch(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        true = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: replacement(true, *given))

    sabotage(patch)
    with pytest.raises((IntegrityError, EngineError, AssertionError, KeyError)):
        run_worlds()


def run_worlds() -> None:
    for seed in range(ENOUGH):
        RandomWorld(seed).run()
