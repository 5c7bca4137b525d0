"""What each token id adds to the output, in the form that streaming needs: bytes, or text.

A tokenizer's ``decoder`` says how tokens become text. Two families cover the models that generate:

* byte-level (GPT-2, Llama 3, Qwen, SmolLM2): each token is a string of bytes, the output is their UTF-8;
* SentencePiece (Llama 2, Mistral, Gemma, Phi-3): each token is text, with U+2581 for a space; bytes that the vocabulary does
  not know come as single tokens ``<0xNN>``; the very first space is an artefact and dropped.

Any other decoder is refused when the tokenizer is loaded: a stream that could differ from the full decode is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import msgspec
from tokenizers import pre_tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


class UnsupportedTokenizerError(ValueError):
    """The tokenizer's decoder is none that can be streamed exactly. Raised at load, never for a request."""


class DecoderRules(msgspec.Struct, frozen=True):
    """How tokens become text; read from the ``decoder`` of tokenizer.json."""

    byte_level: bool
    space: str = ""
    """The character that stands for a space inside tokens (SentencePiece)."""
    byte_fallback: bool = False
    """``<0xNN>`` tokens are bytes."""
    strip_start: int = 0
    """So many leading spaces of the whole text are dropped."""
    bare_first: bool = False
    """The first token loses all its space marks (Metaspace)."""


Piece: TypeAlias = bytes | str | None
"""Of a SentencePiece token. bytes: one byte of UTF-8 text. str: text. None: as if the token were not there."""

_T = TypeVar("_T")


class Pieces(dict[int, _T]):
    """Token id -> what it adds. Filled on first use: looking up is a dictionary access, loading costs nothing.

    Any thread may read; two that meet on a new id compute the same value.
    """

    def __init__(self, piece_of: Callable[[int], _T]) -> None:
        super().__init__()
        self._piece_of = piece_of

    def __missing__(self, token: int) -> _T:
        piece = self._piece_of(token)
        self[token] = piece
        return piece


def byte_level_piece(token: str) -> bytes:
    """The bytes of a byte-level token. A token with a character outside the byte alphabet (an added token) is its own UTF-8."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:
        return token.encode()


def sentence_piece(token: str, rules: DecoderRules) -> bytes | str:
    """The text of a SentencePiece token, or the single byte that it stands for. Metaspace rules keep their space marks: what
    becomes of them depends on the token's place."""
    text = token if rules.bare_first else token.replace(rules.space, " ")
    if rules.byte_fallback and (match := _BYTE_TOKEN.match(text)):
        return bytes((int(match[1], 16),))
    return text


def decoder_rules(decoder: dict[str, Any] | None) -> DecoderRules:
    """Read the ``decoder`` object of a tokenizer.json. Raises UnsupportedTokenizerError, naming the steps found."""
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return DecoderRules(byte_level=True)
    if kinds == ["Metaspace"]:
        bare = steps[0].get("prepend_scheme", "always") != "never"
        return DecoderRules(byte_level=False, space=steps[0]["replacement"], bare_first=bare)
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        return _sentence_piece_rules(steps)
    raise UnsupportedTokenizerError(
        f"the tokenizer's decoder is {' + '.join(kinds) or 'missing'}; supported are ByteLevel, Metaspace and "
        "Replace + ByteFallback + Fuse (+ Strip)"
    )


def _sentence_piece_rules(steps: list[dict[str, Any]]) -> DecoderRules:
    replace, strip = steps[0], steps[3] if len(steps) > 3 else None
    space = replace["pattern"].get("String")
    if not space or replace["content"] != " ":
        raise UnsupportedTokenizerError("the tokenizer's Replace decoder must turn one fixed string into a space")
    if strip is not None and (strip["content"] != " " or strip["stop"]):
        raise UnsupportedTokenizerError("the tokenizer's Strip decoder must strip leading spaces only")
    return DecoderRules(byte_level=False, space=space, byte_fallback=True, strip_start=strip["start"] if strip else 0)


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes (``bytes_to_unicode`` of its encoder): printable Latin-1 stands for itself,
    the others follow from U+0100 in order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(own)]
    table = {chr(byte): byte for byte in own} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
    if set(table) != set(pre_tokenizers.ByteLevel.alphabet()):
        raise UnsupportedTokenizerError("this version of `tokenizers` uses another byte alphabet")
    return table


_BYTE_OF = _byte_alphabet()
