"""Stop strings: where the output ends, and how much of it must be held back until that is known.

An output ends before the occurrence of a stop string that is *complete first*; of several that are complete at the same
character, before the longest. So the end depends on the text alone, neither on how it was cut into tokens and messages nor on
the order of the stop strings, and no further token is needed to decide it. (With "ab" and "abc", "ab" always wins.)

Held back is the longest end of the text that begins a stop string. Both are the state of one Aho-Corasick automaton over
characters (Aho and Corasick, "Efficient string matching", 1975): each character costs amortised constant time, whatever the
number and length of the stop strings and however long the output is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from server.errors import InvalidRequestError


class StopStrings:
    """The automaton of some stop strings. Immutable once made: all sequences of a request share one.

    Raises InvalidRequestError for an empty stop string, naming ``field`` and its index.
    """

    __slots__ = ("depth", "fail", "firsts", "goto", "matched")

    def __init__(self, strings: Sequence[str], *, field: str = "stop.strings") -> None:
        self.goto: list[dict[str, int]] = [{}]
        self.fail = [0]
        self.depth = [0]
        self.matched: list[str | None] = [None]
        for index, string in enumerate(strings):
            if not string:
                raise InvalidRequestError(f"{field}[{index}]", "must not be empty")
            self._add(string)
        self._link()
        self.firsts = frozenset(self.goto[0])

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while state and character not in self.goto[state]:
            state = self.fail[state]
        return self.goto[state].get(character, 0)

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            following = self.goto[state].get(character)
            if following is None:
                following = len(self.goto)
                self.goto[state][character] = following
                self.goto.append({})
                self.fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.matched.append(None)
            state = following
        self.matched[state] = string

    def _link(self) -> None:
        """Breadth first: where to go on when no edge fits, and the longest stop string that ends at each state."""
        queue = deque(self.goto[0].values())
        while queue:
            state = queue.popleft()
            for character, following in self.goto[state].items():
                self.fail[following] = self.step(self.fail[state], character)
                queue.append(following)
            if self.matched[state] is None:
                self.matched[state] = self.matched[self.fail[state]]


NO_STOPS = StopStrings(())


class StopScan(msgspec.Struct, frozen=True):
    """What one piece of text brought."""

    text: str
    """Certain now: neither held back nor beyond a stop."""
    stop: str | None = None
    """The stop string that ended the output."""


class StopMatcher:
    """Follows the text of one sequence. After a stop, nothing more comes out."""

    __slots__ = ("_held", "_state", "_strings", "stopped")

    def __init__(self, strings: StopStrings) -> None:
        self._strings = strings
        self._state = 0
        self._held = ""
        self.stopped: str | None = None

    def feed(self, text: str) -> StopScan:
        """Take the next text. Cost: in proportion to ``text``."""
        if self.stopped is not None:
            return StopScan("")
        strings = self._strings
        if not self._state and strings.firsts.isdisjoint(text):
            return StopScan(text)
        state = self._state
        for place, character in enumerate(text):
            state = strings.step(state, character)
            stop = strings.matched[state]
            if stop is not None:
                return self._stop(stop, text[: place + 1])
        self._state = state
        return self._release(self._held + text, strings.depth[state])

    def finish(self) -> str:
        """The text held back, now that no more can come."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _release(self, pending: str, hold: int) -> StopScan:
        keep = len(pending) - hold
        self._held = pending[keep:]
        return StopScan(pending[:keep])

    def _stop(self, stop: str, text: str) -> StopScan:
        self.stopped = stop
        pending, self._held = self._held + text, ""
        return StopScan(pending[: len(pending) - len(stop)], stop)
