"""`firsttoken generate PROMPT`: continue a text, streaming to the terminal."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from firsttoken.request_options import add_request_options, asking, options_of
from firsttoken.terminal import TextWriter, decode_input, delta_json, final_json, note, summary, write_json

if TYPE_CHECKING:
    from firsttoken.client import Stream

HELP = "continue a text, streaming to the terminal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="the text to continue; - reads it from standard input, but for one last newline")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a line: every delta, then the final message"
    )
    add_request_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """The text goes to standard output, the time to the first token and the speed to standard error."""
    prompt = _read_prompt() if arguments.prompt == "-" else arguments.prompt
    with asking(arguments) as client, client.generate(prompt, **options_of(arguments)) as stream:
        if arguments.json:
            _write_objects(stream)
        else:
            _write_text(stream)
    return 0


def _write_objects(stream: Stream) -> None:
    for delta in stream:
        write_json(delta_json(delta))
    write_json(final_json(stream))


def _write_text(stream: Stream) -> None:
    writer = TextWriter()
    try:
        for delta in stream:
            writer.write(delta.text)
    finally:
        writer.end_line()
    note(summary(stream))


def _read_prompt() -> str:
    return decode_input(sys.stdin.buffer.read()).removesuffix("\n")
