"""Events on their way out, first tokens first."""

from __future__ import annotations

from server.engine import Event, PromptScored, RequestFinished, SequenceFinished, TokensEvent


class Outbox:
    """Collects a step's events. For one request their order is right as they stand: tokens before its finishes, its first before
    its others; across requests first tokens come first, since somebody waits for them."""

    __slots__ = ("finishes", "first_tokens", "tokens")

    def __init__(self) -> None:
        self.first_tokens: list[TokensEvent] = []
        self.tokens: list[TokensEvent | PromptScored] = []
        self.finishes: list[SequenceFinished | RequestFinished] = []

    def collect(self) -> list[Event]:
        """Everything since the last call."""
        events: list[Event] = [*self.first_tokens, *self.tokens, *self.finishes]
        self.first_tokens, self.tokens, self.finishes = [], [], []
        return events
