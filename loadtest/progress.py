"""Running totals of one client process, cheap enough to update on every message."""

from __future__ import annotations

from collections import Counter

import msgspec

from loadtest.record import RequestRecord


class Snapshot(msgspec.Struct, frozen=True):
    """What happened since the snapshot before."""

    sent: int
    running: int
    messages: int
    tokens: int
    statuses: dict[str, int]
    ttfts: list[float]
    lags: list[float]

    @classmethod
    def merged(cls, parts: list[Snapshot]) -> Snapshot:
        statuses: Counter[str] = Counter()
        for part in parts:
            statuses.update(part.statuses)
        return cls(
            sum(part.sent for part in parts),
            sum(part.running for part in parts),
            sum(part.messages for part in parts),
            sum(part.tokens for part in parts),
            dict(statuses),
            [value for part in parts for value in part.ttfts],
            [value for part in parts for value in part.lags],
        )


class Progress:
    """Written by the driver, drained by whoever reports. One thread."""

    def __init__(self) -> None:
        self.sent = 0
        self.running = 0
        self.messages = 0
        self.tokens = 0
        self.all_messages = 0
        self._statuses: Counter[str] = Counter()
        self._ttfts: list[float] = []
        self._lags: list[float] = []

    def on_sent(self) -> None:
        self.sent += 1
        self.running += 1

    def on_content(self, tokens: int) -> None:
        self.messages += 1
        self.all_messages += 1
        self.tokens += tokens

    def on_record(self, record: RequestRecord) -> None:
        self.running -= 1
        self._statuses[record.status] += 1
        self._lags.append(record.lag)
        if record.ttft is not None:
            self._ttfts.append(record.ttft)

    def drain(self) -> Snapshot:
        snapshot = Snapshot(
            self.sent, self.running, self.messages, self.tokens, dict(self._statuses), self._ttfts, self._lags
        )
        self.sent = self.messages = self.tokens = 0
        self._statuses, self._ttfts, self._lags = Counter(), [], []
        return snapshot
