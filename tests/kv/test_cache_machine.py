"""A state machine over the stores alone: whatever the order of events, a found block holds what its name says, and none is lost."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from engines.contract import Retention
from server.kv.node import NO_BLOCK
from server.kv.sequence_blocks import SequenceBlocks
from tests.kv.house import BLOCK, make_blocks, make_cache

EXAMPLES = int(os.environ.get("FIRSTTOKEN_TEST_EXAMPLES", "150"))
TOKENS = st.lists(st.sampled_from((1, 2)), min_size=1, max_size=24)
SALTS = st.sampled_from((b"", b"other"))


class Writer:
    """A sequence under test, and how far it has written its blocks."""

    def __init__(self, blocks: SequenceBlocks, tokens: list[int], salt: bytes) -> None:
        self.blocks = blocks
        self.tokens = tokens
        self.salt = salt
        self.written = 0


class CacheMachine(RuleBasedStateMachine):
    """``contents`` says what really stands in each block, token by token, with all that came before it."""

    writers = Bundle("writers")

    def __init__(self) -> None:
        super().__init__()
        self.cache = make_cache(10)
        self.contents: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        self.live: list[Writer] = []
        self.step = 0
        self.open = False

    @rule(target=writers, tokens=TOKENS, salt=SALTS)
    def seat(self, tokens: list[int], salt: bytes) -> Writer:
        blocks = make_blocks(self.cache, tokens, salt)
        blocks.adopt(blocks.match(len(tokens) - 1))
        writer = Writer(blocks, tokens, salt)
        writer.written = len(blocks.table) * BLOCK
        self.check_found(writer)
        self.live.append(writer)
        return writer

    @rule(writer=writers, count=st.integers(1, 9))
    def write(self, writer: Writer, count: int) -> None:
        """Compute some more tokens into private blocks, as far as blocks are to be had."""
        if writer not in self.live:
            return
        end = min(len(writer.tokens), writer.written + count)
        writer.blocks.grow(-(-end // BLOCK))
        end = min(end, len(writer.blocks.table) * BLOCK)
        for position in range(writer.written, end):
            block = writer.blocks.table[position // BLOCK]
            assert self.cache.pool.refs[block] == 1, "a block that others hold is written"
            assert self.cache._by_block[block] is None, "a published block is written"
            self.contents[block] = (writer.salt, tuple(writer.tokens[: position + 1]))
        writer.written = end

    @rule(writer=writers)
    def publish(self, writer: Writer) -> None:
        if writer in self.live:
            writer.blocks.publish(writer.written)
            self.check_found(writer)

    @rule(writer=consumes(writers))
    def release(self, writer: Writer) -> None:
        if writer in self.live:
            writer.blocks.release()
            self.live.remove(writer)

    @rule(tokens=TOKENS, salt=SALTS)
    def copy_from(self, tokens: list[int], salt: bytes) -> None:
        """What is offered for copying begins as it says."""
        blocks = make_blocks(self.cache, tokens, salt)
        node, shared = blocks.match_partly(len(tokens) - 1)
        if node is not None:
            assert self.contents[node.block][0] == salt
            assert list(self.contents[node.block][1][:shared]) == tokens[:shared]
            assert shared <= min(BLOCK, len(tokens) - 1)

    @rule(writer=writers, priority=st.integers(0, 100), seconds=st.one_of(st.none(), st.floats(0.1, 9)))
    def wish(self, writer: Writer, priority: int, seconds: float | None) -> None:
        """About all that the sequence has published."""
        for block in writer.blocks.table[: writer.blocks.published] if writer in self.live else ():
            node = self.cache._by_block[block]
            assert node is not None
            self.cache.keep(node, Retention(0, None, priority, seconds))

    @rule(seconds=st.floats(0.1, 5))
    def wait(self, seconds: float) -> None:
        self.cache.now += seconds

    @rule()
    def forget(self) -> None:
        cached = self.cache.cached
        assert self.cache.forget() == cached
        assert self.cache.cached == 0

    @precondition(lambda self: not self.live and not self.open)
    @rule(blocks=st.integers(1, 12))
    def restart(self, blocks: int) -> None:
        """Into a pool of another size: what fits is put back, parents first, each block's contents moved along."""
        before, self.cache, contents = self.cache, make_cache(blocks), {}
        for rank, node in enumerate(before.hottest()):
            assert node.parent is not None
            block = self.cache.restore(
                node.parent.digest, node.digest, node.tokens, last_use=100 - rank, reuses=node.reuses
            )
            assert (block == NO_BLOCK) == (rank >= blocks)
            contents[block] = self.contents[node.block]
            self.cache.check_integrity()
        self.contents = contents
        self.step = 0

    @rule()
    def toggle_step(self) -> None:
        if self.open:
            self.cache.pool.complete_step(self.step)
        else:
            self.step += 1
            self.cache.pool.open_step(self.step)
        self.open = not self.open

    def check_found(self, writer: Writer) -> None:
        for index in range(writer.blocks.published):
            expected = (writer.salt, tuple(writer.tokens[: (index + 1) * BLOCK]))
            assert self.contents[writer.blocks.table[index]] == expected

    @invariant()
    def holds(self) -> None:
        self.cache.check_integrity()
        held = [0] * self.cache.pool.count
        for writer in self.live:
            for block in writer.blocks.table:
                held[block] += 1
        assert held == list(self.cache.pool.refs)

    def teardown(self) -> None:
        for writer in self.live:
            writer.blocks.release()
        if self.open:
            self.cache.pool.complete_step(self.step)
        self.cache.check_integrity()
        assert self.cache.available == self.cache.pool.count


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
