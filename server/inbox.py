"""What other threads want of the engine thread, kept until it looks: at each step's border, or at once when it is idle."""

from __future__ import annotations

import threading
from collections import deque
from typing import TypeAlias

import msgspec

from server.cache_tasks import Tend
from server.engine import FinishReason, GenerationRequest


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: GenerationRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    request: int
    reason: FinishReason


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    request: int
    sequence: int
    after_token: int


Command: TypeAlias = Submit | Cancel | Stop | Tend


class Inbox:
    """Many writers, one reader. Appending never blocks; the reader sleeps on :meth:`wait` while there is nothing to run.

    Order is kept, so a cancel can never overtake the submit that it is about.
    """

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._wake = threading.Event()

    def put(self, command: Command) -> None:
        """Any thread."""
        self._commands.append(command)
        self._wake.set()

    def poke(self) -> None:
        """Wake the reader without a command. Any thread."""
        self._wake.set()

    def take(self) -> list[Command]:
        """All that has arrived, oldest first. Reader only."""
        self._wake.clear()  # before looking: a command put after the look sets it again
        taken: list[Command] = []
        commands = self._commands
        while commands:
            taken.append(commands.popleft())
        return taken

    def wait(self, timeout: float | None) -> None:
        """Sleep until something arrives or ``timeout`` seconds pass. Reader only."""
        self._wake.wait(timeout)
