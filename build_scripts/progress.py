"""How a build tells what it does: notes, and stages with a length. The command draws them; tests collect them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

Advance: TypeAlias = Callable[[int], None]
"""Called with how many units more are done."""


class Reporter(Protocol):
    def note(self, text: str) -> None:
        """What begins now, in words."""
        ...

    def stage(self, text: str, total: int) -> AbstractContextManager[Advance]:
        """A part of known length: the context's value is called as work proceeds."""
        ...
