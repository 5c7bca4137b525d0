"""When somebody new may be seated: at once, after a batching window, or only when a whole batch is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Door(Protocol):
    """Asked once a step, before anybody is seated, while somebody waits. Engine thread only."""

    def is_open(self, *, seated: int, decoding: int, waiting: int, oldest: float, now: float) -> bool:
        """``seated`` sequences of whom ``decoding`` draw a token each step; ``oldest``: arrival of who is next.

        Must be True while nobody is seated and nobody else will come, or they would wait for ever.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchingWindow:
    """The two knobs of dynamic batching: collect ``size`` requests, or until the next of them has waited ``wait`` seconds.

    Only ever delays while others stream: an idle engine takes whoever comes. Prompts that share a step share its fixed cost, and
    streams pause once for all of them; 0 = take everybody at once.
    """

    size: int = 8
    wait: float = 0.0

    def is_open(self, *, seated: int, decoding: int, waiting: int, oldest: float, now: float) -> bool:  # noqa: ARG002
        return self.wait <= 0.0 or not decoding or waiting >= self.size or now - oldest >= self.wait


class StaticBatches:
    """The old way, for comparison: as many as there are seats enter together, the next when the last of them has finished."""

    def __init__(self) -> None:
        self._filling = True

    def is_open(self, *, seated: int, decoding: int, waiting: int, oldest: float, now: float) -> bool:  # noqa: ARG002
        if not seated:
            self._filling = True
        elif decoding:
            self._filling = False
        return self._filling
