"""Incremental detokenisation: the text that each new token adds.

The law. Let D be the tokenizer's full decode, P the prompt's ids and O the output's. What a detokenizer gives for O, all parts
together, is exactly the characters of D(P + O) that hold at least one byte of O, for every way of cutting O. It follows that

* without a prompt, the text is D(O);
* a character that the prompt left unfinished appears, whole, when the output finishes it;
* a U+FFFD that stands for bytes of the prompt alone is not the output's;
* the leading space that SentencePiece models drop at the start of a text stays where a prompt came before.

Nothing waits that is decided: bytes are held back only while they are an unfinished character, and in the SentencePiece family,
where one bad byte turns its whole run of byte tokens into U+FFFD, until that run ends. finish() gives what is left, as D would.
Each token costs time in proportion to its own length, never to the output's. (The `tokenizers` library's own DecodeStream has
no flush, raises "Invalid prefix encountered" on stray bytes, and its window grows for as long as they come.)
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from server.text.pieces import DecoderRules, Piece, Pieces

REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The text of one sequence, token by token. Not thread-safe."""

    def feed(self, token: int) -> str:
        """The text that is certain now and was not before; often empty."""
        ...

    def finish(self) -> str:
        """What is still held back, as a full decode shows it. Call once, last."""
        ...


class ByteLevelDetokenizer:
    """Tokens are bytes; the text is their UTF-8, with one U+FFFD for each maximal ill-formed part (Unicode 15, section 3.9)."""

    __slots__ = ("_held", "_held_is_prompts", "_pieces")

    def __init__(self, pieces: Pieces[bytes], prompt: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._held = _unfinished_character(pieces, prompt)
        self._held_is_prompts = bool(self._held)

    def feed(self, token: int) -> str:
        piece = self._pieces[token]
        if not piece:
            return ""
        data = self._held + piece
        if self._held_is_prompts:
            return self._feed_first(data)
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def finish(self) -> str:
        held, self._held = self._held, b""
        return "" if self._held_is_prompts else utf_8_decode(held, "replace", True)[0]

    def _feed_first(self, data: bytes) -> str:
        """The first bytes after a prompt that ended inside a character."""
        prompts = len(self._held)
        self._held_is_prompts = False
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        _, taken = utf_8_decode(data[: prompts + 1], "replace", False)
        # One byte more settles it: nothing taken = the character goes on; all taken as one character = it is complete;
        # anything else = the prompt's bytes were given up as a U+FFFD of their own, which is not the output's.
        if taken == 0 or _is_one_character(data[: prompts + 1]):
            return text
        return text[1:]


class SentencePieceDetokenizer:
    """Tokens are text or single bytes; see :class:`server.text.pieces.DecoderRules`."""

    __slots__ = ("_at_start", "_pieces", "_prompts_bytes", "_rules", "_run", "_to_strip")

    def __init__(self, pieces: Pieces[Piece], rules: DecoderRules, prompt: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._rules = rules
        self._run = bytearray()
        self._prompts_bytes = 0
        self._to_strip = rules.strip_start
        self._at_start = rules.bare_first
        self._read_prompt(prompt)

    def feed(self, token: int) -> str:
        piece = self._pieces[token]
        if piece is None:
            return ""
        if isinstance(piece, bytes):
            self._run += piece
            return ""
        if self._rules.bare_first:
            return self._metaspace(piece)
        if not (self._run or self._to_strip):
            return piece
        return self._end_run() + self._strip(piece)

    def finish(self) -> str:
        return self._end_run()

    def _read_prompt(self, prompt: Sequence[int]) -> None:
        """Take over the prompt's state: what its start used up of the strip rules, and the run of bytes at its end."""
        tail = len(prompt)
        while tail and not isinstance(self._pieces[prompt[tail - 1]], str):
            tail -= 1
        for token in islice(prompt, tail):
            if not (self._to_strip or self._at_start):
                break
            self.feed(token)
        for token in prompt[tail:]:
            self.feed(token)
        self._prompts_bytes = len(self._run)

    def _metaspace(self, piece: str) -> str:
        if self._at_start:
            self._at_start = False
            return piece.replace(self._rules.space, "")
        return piece.replace(self._rules.space, " ")

    def _strip(self, text: str) -> str:
        while self._to_strip and text:
            if text[0] != " ":
                self._to_strip = 0
                break
            text = text[1:]
            self._to_strip -= 1
        return text

    def _end_run(self) -> str:
        run, prompts = bytes(self._run), self._prompts_bytes
        if not run:
            return ""
        self._run.clear()
        self._prompts_bytes = 0
        try:
            whole = run.decode()
            foreign = len(run[:prompts].decode(errors="ignore"))
        except UnicodeDecodeError:
            whole = REPLACEMENT * len(run)
            foreign = prompts
        text = self._strip(whole)
        stripped = len(whole) - len(text)
        return text[max(0, foreign - stripped) :]


def _is_one_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def _unfinished_character(pieces: Pieces[bytes], prompt: Sequence[int]) -> bytes:
    """The last bytes of a prompt that begin a character and do not end it: at most three."""
    tail = b""
    for token in reversed(prompt):
        piece = pieces[token]
        if piece:
            tail = piece + tail
            if len(tail) >= 3:
                break
    tail = tail[-3:]
    return tail[utf_8_decode(tail, "replace", False)[1] :]
