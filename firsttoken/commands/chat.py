"""`firsttoken chat`: a conversation, in a terminal or through pipes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from firsttoken.errors import CallError
from firsttoken.request_options import add_request_options, asking, options_of
from firsttoken.terminal import TextWriter, decode_input, note, summary

if TYPE_CHECKING:
    from firsttoken.client import Client, GenerateOptions, Message

HELP = "talk with the model; Ctrl-C stops an answer, Ctrl-D ends"
START_AGAIN = "/new"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        f"Each line is a turn; {START_AGAIN} forgets the conversation. "
        "Not on a terminal, lines are read from standard input, and an error ends the conversation."
    )
    parser.add_argument("--system", metavar="TEXT", help="what the model is told beforehand")
    add_request_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answers go to standard output, everything else to standard error."""
    interactive = sys.stdin.isatty()
    with asking(arguments) as client:
        conversation = Conversation(client, options_of(arguments), arguments.system, interactive=interactive)
        for line in _typed_lines() if interactive else _piped_lines():
            conversation.turn(line)
    return 0


class Conversation:
    """The turns so far. A stopped answer stays, as far as it came; a turn that failed is forgotten."""

    def __init__(self, client: Client, options: GenerateOptions, system: str | None, *, interactive: bool) -> None:
        from firsttoken.client import Message

        self._client = client
        self._options = options
        self._interactive = interactive
        self._beginning = [Message("system", system)] if system is not None else []
        self._turns: list[Message] = list(self._beginning)

    def turn(self, line: str) -> None:
        """One line of the user's. Raises CallError where nobody is there to read an error and go on."""
        from firsttoken.client import Message

        if line.strip() == START_AGAIN:
            self._turns = list(self._beginning)
            return
        asked = [*self._turns, Message("user", line)]
        try:
            answer = self._answer(asked)
        except CallError as error:
            if not self._interactive:
                raise
            note(f"firsttoken: {error}")
        else:
            self._turns = [*asked, Message("assistant", answer)]

    def _answer(self, asked: list[Message]) -> str:
        writer = TextWriter()
        parts: list[str] = []
        options: GenerateOptions = {**self._options, "messages": asked}
        try:
            with self._client.generate(**options) as stream:
                for delta in stream:
                    parts.append(delta.text)
                    writer.write(delta.text)
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            writer.end_line()
            note("[stopped]")
        else:
            writer.end_line()
            note(summary(stream))
        return "".join(parts)


def _typed_lines() -> Iterator[str]:
    """Until Ctrl-D; Ctrl-C forgets the line that is being typed."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() a history and editing

    while True:
        try:
            line = input("> ")
        except EOFError:
            note("")
            return
        except KeyboardInterrupt:
            note("")
            continue
        if line.strip():
            yield line


def _piped_lines() -> Iterator[str]:
    lines = (decode_input(line) for line in sys.stdin.buffer)
    return (line.rstrip("\r\n") for line in lines if line.strip())
