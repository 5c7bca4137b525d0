"""Streaming a model's words to a terminal, a pipe or a program."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

from firsttoken.errors import CommandError

if TYPE_CHECKING:
    from firsttoken.client import Delta, Stream

# A model can say anything, also what moves the cursor or sets the window's title; on a terminal it is shown, not obeyed.
_SHOWN = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


class TextWriter:
    """Writes text as it comes. What the output's encoding cannot say becomes a question mark."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._guarded = self._out.isatty()
        self._at_line_start = True
        if hasattr(self._out, "reconfigure"):
            self._out.reconfigure(errors="replace")

    def write(self, text: str) -> None:
        if text:
            self._out.write(text.translate(_SHOWN) if self._guarded else text)
            self._out.flush()
            self._at_line_start = text.endswith("\n")

    def end_line(self) -> None:
        """Start a new line, unless one has just begun."""
        if not self._at_line_start:
            self.write("\n")


def decode_input(data: bytes) -> str:
    """Text from standard input: UTF-8, whatever the locale says. Raises CommandError."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CommandError(
            f"standard input is no valid UTF-8: byte {error.start} is {data[error.start]:#04x}"
        ) from error


def write_json(value: object) -> None:
    """One object, one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def delta_json(delta: Delta) -> dict[str, object]:
    return {"type": "delta", "index": delta.index, "tokens": list(delta.tokens), "text": delta.text}


def final_json(stream: Stream) -> dict[str, object]:
    """The final message, and under ``client`` what was measured here."""
    final = stream.final
    return {
        "type": "final",
        "finish_reason": final.finish_reason.value,
        "stop_string": final.stop_string,
        "seed": final.seed,
        "usage": asdict(final.usage),
        "timings": asdict(final.timings),
        "client": {
            "first_token_seconds": stream.first_token_seconds,
            "tokens_per_second": stream.tokens_per_second,
        },
    }


def summary(stream: Stream) -> str:
    """How it went, for people: measured at this client."""
    final, usage = stream.final, stream.final.usage
    parts = []
    if stream.first_token_seconds is not None:
        parts.append(f"first token after {stream.first_token_seconds * 1e3:.0f} ms")
    if stream.tokens_per_second is not None:
        parts.append(f"then {stream.tokens_per_second:.1f} tokens/s")
    parts.append(f"{usage.completion_tokens} tokens, ended by {final.finish_reason.value.replace('_', ' ')}")
    parts.append(f"prompt of {usage.prompt_tokens}, {usage.cached_tokens} cached")
    return "; ".join(parts)


def note(text: str) -> None:
    """Say something beside the output."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - the user's terminal
