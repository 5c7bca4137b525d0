"""One step: under construction, then in flight."""

from __future__ import annotations

from engines.contract import BlockCopy, Row, SequenceSpec, StepPlan
from server.scheduling.record import RequestRecord
from server.scheduling.sequence import Sequence


class Composition:
    """The rows of a step with the sequences behind them, and what must be undone or released when it is over."""

    __slots__ = (
        "attention",
        "chunked",
        "chunks",
        "closed",
        "computing",
        "context",
        "copies",
        "decodes",
        "held",
        "new",
        "opened",
        "partial",
        "rows",
        "sampled",
        "scored",
        "step",
        "tokens",
        "traced",
    )

    def __init__(self, step: int) -> None:
        self.step = step
        self.rows: list[Row] = []
        self.sampled: list[Sequence] = []
        """Behind the rows that draw a token, in their order."""
        self.partial: list[Sequence] = []
        """Behind the rows that draw none."""
        self.chunked: list[Sequence] = []
        """Behind the rows that compute known tokens: prompts."""
        self.scored: dict[int, Sequence] = {}
        """Those of ``partial`` whose rows give log-probabilities, by id."""
        self.chunks: list[int] = []
        """How many tokens each of ``chunked`` computes."""
        self.copies: list[BlockCopy] = []
        self.held: list[int] = []
        """Sources of the copies, held until the step is over."""
        self.opened: list[SequenceSpec] = []
        self.closed: list[int] = []
        self.computing: set[bytes] = set()
        """Names of the blocks that this step's prefill chunks fill, or begin to fill, as far as somebody might wait for them."""
        self.tokens = 0
        self.decodes = 0
        """Rows of one token each, the first of all; ``context``: tokens that they attend to."""
        self.context = 0
        self.new = 0
        """Tokens of the chunks; ``attention``: sum of new * (past + new / 2) over them."""
        self.attention = 0.0
        self.traced: list[tuple[RequestRecord[Sequence], float, int, int]] = []
        """Of traced requests: when their chunk was planned, the tokens before it, and its tokens."""

    def plan(self) -> StepPlan:
        return StepPlan(self.step, self.rows, self.copies, self.opened, self.closed)
