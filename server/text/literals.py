"""Keeps what people write in a conversation apart from what the chat template writes.

Special tokens steer a model: ``<|im_end|>`` ends a turn, and a user who could write one could speak as the system. So where a
message holds the text of a special token, a mark stands in its place while the template renders; afterwards the text comes
back, and with it the places where the tokenizer must read it as the ordinary text that it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Noncharacters, which Unicode reserves for use inside a process (Unicode 15, section 23.7)."""
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class Literal(NamedTuple):
    """The text of a special token that is only text."""

    start: int
    """Its first character's place in the rendered text."""
    text: str


class Literals:
    """Immutable; any thread may use it."""

    def __init__(self, special_texts: Iterable[str]) -> None:
        # What opens a mark is hidden as well, so that nobody can write marks.
        self._names = [*sorted(special_texts, key=len, reverse=True), _OPEN]
        self._find = re.compile("|".join(map(re.escape, self._names)))

    def hide(self, text: str) -> str:
        """``text`` with a mark in place of each special token's text."""
        if not any(name in text for name in self._names):
            return text
        return self._find.sub(lambda found: f"{_OPEN}{self._names.index(found[0])}{_CLOSE}", text)

    def hide_all(self, value: object) -> object:
        """The same for every text inside JSON."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, dict):
            return {self.hide_all(key): self.hide_all(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_all(inner) for inner in value]
        return value

    def reveal(self, rendered: str) -> tuple[str, Sequence[Literal]]:
        """The rendered text as its reader sees it, and the literals in it, in order."""
        if _OPEN not in rendered:
            return rendered, ()
        parts: list[str] = []
        literals: list[Literal] = []
        length = place = 0
        for mark in _MARK.finditer(rendered):
            name = self._names[int(mark[1])]
            before = rendered[place : mark.start()]
            literals.append(Literal(length + len(before), name))
            parts += before, name
            length += len(before) + len(name)
            place = mark.end()
        return "".join([*parts, rendered[place:]]), literals
