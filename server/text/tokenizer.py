"""The model's tokenizer: text to ids, ids to text, and the facts of its vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer

from server.errors import InvalidRequestError
from server.text.chat import ChatMessage, ChatTemplate, Conversation
from server.text.detokenizer import ByteLevelDetokenizer, Detokenizer, SentencePieceDetokenizer
from server.text.literals import Literal, Literals
from server.text.pieces import (
    Piece,
    Pieces,
    UnsupportedTokenizerError,
    byte_level_piece,
    decoder_rules,
    sentence_piece,
)

__all__ = ["TextTokenizer", "UnsupportedTokenizerError"]

_ID_LIMIT = 2**32
"""The library's ids are 32 bits wide."""


class TextTokenizer:
    """Immutable once made; every method may be called from any thread.

    The `tokenizers` library holds the interpreter's lock in encode() and decode() and gives it up in their batch forms, which
    give the same ids and text: only those are used here, so that a long prompt never stops the other threads.

    Its cache of words is off. It keeps up to 10,000 words of what anybody sent, each with up to 6.6 kB, for each thread that tokenizes, and
    keeps them until that thread ends, the tokenizer's own end notwithstanding: 64 MiB a thread, and again that on the event loop's with each
    engine that is swapped in. Without it a text takes a third more time: 0.1 ms more for 1,000 characters.
    """

    def __init__(self, tokenizer: Tokenizer, *, bos_id: int | None = None) -> None:
        """``bos_id``: put before every text prompt, where the model wants that; None where it does not.

        Raises UnsupportedTokenizerError where the decoder cannot be streamed exactly, or ``bos_id`` is not in the vocabulary.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        _forget_words(tokenizer)
        self._tokenizer = tokenizer
        self._rules = decoder_rules(tokenizer.decoder and json.loads(tokenizer.decoder.__getstate__()))
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        """Hidden from text unless asked for."""
        if not tokenizer.get_vocab_size():
            raise UnsupportedTokenizerError("the tokenizer holds no token")
        if bos_id is not None and tokenizer.id_to_token(bos_id) is None:
            raise UnsupportedTokenizerError(f"beginning-of-sequence id {bos_id} is not in the vocabulary")
        self.bos_id = bos_id
        self._literal_ids = self._read_special_tokens_as_text(added)
        self._literals = Literals(self._literal_ids)
        self._byte_pieces = tuple(Pieces(partial(self._byte_piece, show)) for show in (False, True))
        self._text_pieces = tuple(Pieces(partial(self._text_piece, show)) for show in (False, True))

    @classmethod
    def from_file(cls, path: str | Path, *, bos_id: int | None = None) -> TextTokenizer:
        """Read a tokenizer.json. Raises OSError and UnsupportedTokenizerError."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"), bos_id=bos_id)

    @classmethod
    def from_json(cls, text: str, *, bos_id: int | None = None) -> TextTokenizer:
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exceptions
            raise UnsupportedTokenizerError(f"tokenizer.json cannot be read: {error}") from error
        return cls(tokenizer, bos_id=bos_id)

    def encode(self, text: str, *, add_bos: bool = True, field: str = "prompt.text") -> list[int]:
        """The ids of a text, as the model's own tokenizer gives them: special tokens written out in the text become their ids.

        Raises InvalidRequestError naming ``field`` for
        text that is no valid Unicode (lone surrogates).
        """
        try:
            ids = list(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequestError(field, "is not valid Unicode text") from error
        return [self.bos_id, *ids] if add_bos and self.bos_id is not None else ids

    def encode_chat(
        self,
        template: ChatTemplate,
        conversation: Conversation | Sequence[ChatMessage],
        *,
        field: str = "prompt.messages",
    ) -> list[int]:
        """The ids of a conversation. The template writes the beginning-of-sequence token, if the model wants one; special
        tokens that stand in the messages themselves are ordinary text. Raises InvalidRequestError naming ``field``."""
        if not isinstance(conversation, Conversation):
            conversation = Conversation(tuple(conversation))
        # Whatever a client wrote, keys and values of JSON included.
        hidden = self._literals.hide_all(msgspec.to_builtins(conversation))
        rendered = template.render(msgspec.convert(hidden, Conversation), field=field)
        text, literals = self._literals.reveal(rendered)
        if not literals:
            return self.encode(text, add_bos=False, field=field)
        return self._encode_with_literals(text, literals)

    def decode(self, ids: Sequence[int], *, show_special_tokens: bool = False, field: str = "ids") -> str:
        """The full decode. Ids that the vocabulary does not know add nothing (a model's output can have more rows than its
        tokenizer has tokens). Raises InvalidRequestError naming the first id that can be no id at all."""
        try:
            texts = self._tokenizer.decode_batch([list(ids)], skip_special_tokens=not show_special_tokens)
        except OverflowError as error:
            index = next(place for place, token in enumerate(ids) if not 0 <= token < _ID_LIMIT)
            raise InvalidRequestError(f"{field}[{index}]", f"must be a token id, not {ids[index]}") from error
        return str(texts[0])

    def detokenizer(self, prompt: Sequence[int] = (), *, show_special_tokens: bool = False) -> Detokenizer:
        """A fresh incremental decoder for the output after ``prompt``. Ids without a text add nothing."""
        if self._rules.byte_level:
            return ByteLevelDetokenizer(self._byte_pieces[show_special_tokens], prompt)
        return SentencePieceDetokenizer(self._text_pieces[show_special_tokens], self._rules, prompt)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the greatest id. A model's output may have more rows: those ids have no text."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact name."""
        return self._tokenizer.token_to_id(token)

    def token_name(self, token: int) -> str | None:
        return self._tokenizer.id_to_token(token)

    def _encode_with_literals(self, text: str, literals: Sequence[Literal]) -> list[int]:
        """The ids of a text, but special tokens that stand where a literal stands replaced by its text's own."""
        encoding = self._tokenizer.encode_batch([text], add_special_tokens=False)[0]
        result: list[int] = []
        remaining = iter(literals)
        literal = next(remaining, None)
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            while literal is not None and literal.start < start:
                literal = next(remaining, None)
            if literal is None or literal.start >= end or token not in self.special_ids:
                result.append(token)
                continue
            # Some special tokens swallow the spaces beside them; these are the message's.
            result += self.encode(text[start : literal.start], add_bos=False)
            result += self._literal_ids[literal.text]
            result += self.encode(text[literal.start + len(literal.text) : end], add_bos=False)
        return result

    def _read_special_tokens_as_text(self, added: Mapping[int, AddedToken]) -> dict[str, list[int]]:
        """Each special token's text -> the ids that it has as ordinary text."""
        texts = [token.content for token in added.values() if token.special]
        self._tokenizer.encode_special_tokens = True
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        self._tokenizer.encode_special_tokens = False
        return {text: list(encoding.ids) for text, encoding in zip(texts, encodings, strict=True)}

    def _shown_name(self, show_special_tokens: bool, token: int) -> str | None:
        if not 0 <= token < _ID_LIMIT or (token in self.special_ids and not show_special_tokens):
            return None
        return self.token_name(token)

    def _byte_piece(self, show_special_tokens: bool, token: int) -> bytes:
        name = self._shown_name(show_special_tokens, token)
        return b"" if name is None else byte_level_piece(name)

    def _text_piece(self, show_special_tokens: bool, token: int) -> Piece:
        name = self._shown_name(show_special_tokens, token)
        return None if name is None else sentence_piece(name, self._rules)


def _forget_words(tokenizer: Tokenizer) -> None:
    """Models without merges, such as WordPiece, have no cache, and no such method."""
    resize = getattr(tokenizer.model, "_resize_cache", None)
    if resize is not None:
        resize(0)
