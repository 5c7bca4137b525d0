"""Stop strings: where the output ends, and how much of it must be held back until that is known.

An output ends before the occurrence of a stop string that is *complete first*; of several that are complete at the same
character, before the longest. So the end depends on the text alone, neither on how it was cut into tokens and messages nor on
the order of the stop strings, and no further token is needed to decide it. (With "ab" and "abc", "ab" always wins.)

Held back is the longest end of the text that begins a stop string. Both are the state of one Aho-Corasick automaton over
characters (Aho and Corasick, "Efficient string matching", 1975): each character costs amortised constant time, whatever the
length of the stop strings and however long the output is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from server.errors import InvalidRequestError


class StopStrings:
    """The automaton of some stop strings; all sequences of a request share one. Belongs to one thread.

    States are made when a text first reaches them: making the automaton costs nothing, however long the stop strings are,
    and there are never more states than the texts had characters times the number of stop strings.
    Raises InvalidRequestError for an empty stop string, naming ``field`` and its index.
    """

    __slots__ = ("_beyond", "_goto", "depth", "fail", "firsts", "matched")

    def __init__(self, strings: Sequence[str], *, field: str = "stop.strings") -> None:
        for index, string in enumerate(strings):
            if not string:
                raise InvalidRequestError(f"{field}[{index}]", "must not be empty")
        self.firsts = frozenset(string[0] for string in strings)
        self.depth = [0]
        """Of each state: how many characters of a stop string it stands for."""
        self.fail = [0]
        """Of each state: the longest proper end of its characters that begins a stop string."""
        self.matched: list[str | None] = [None]
        """Of each state: the longest stop string that ends with it."""
        self._goto: list[dict[str, int]] = [{}]
        self._beyond = [tuple(dict.fromkeys(strings))]
        """Of each state: the stop strings that begin with it."""

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while True:
            following = self._goto[state].get(character) or self._grow(state, character)
            if following or not state:
                return following
            state = self.fail[state]

    def _grow(self, state: int, character: str) -> int:
        """Make the state that ``character`` leads to; 0 where it fits no stop string.

        The recursion through step() makes states of ever shorter stop strings, at most one for each stop string: every
        shorter beginning of one that is being made exists already.
        """
        depth = self.depth[state]
        fitting = tuple(s for s in self._beyond[state] if len(s) > depth and s[depth] == character)
        if not fitting:
            return 0
        fail = self.step(self.fail[state], character) if state else 0
        made = len(self.depth)
        self.depth.append(depth + 1)
        self.fail.append(fail)
        self.matched.append(next((s for s in fitting if len(s) == depth + 1), self.matched[fail]))
        self._goto.append({})
        self._beyond.append(fitting)
        self._goto[state][character] = made
        return made


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
        strings, firsts, state = self._strings, self._strings.firsts, self._state
        if not state and firsts.isdisjoint(text):
            return StopScan(text)
        for place, character in enumerate(text):
            if not state and character not in firsts:
                continue
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
