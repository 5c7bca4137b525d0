"""The model's tokenizer: text to ids, ids to text, and the facts of its vocabulary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from server.errors import InvalidRequestError
from server.text.detokenizer import ByteLevelDetokenizer, Detokenizer, SentencePieceDetokenizer
from server.text.pieces import (
    Piece,
    Pieces,
    UnsupportedTokenizerError,
    byte_level_piece,
    decoder_rules,
    sentence_piece,
)
from server.text.tokenizer_pool import TokenizerPool

__all__ = ["TextTokenizer", "TokenizerPool", "UnsupportedTokenizerError"]


class TextTokenizer:
    """Immutable once made; every method may be called from any thread.

    The `tokenizers` library holds the interpreter's lock in encode() and decode() and gives it up in their batch forms, which
    give the same ids and text: only those are used here, so that a long prompt never stops the other threads.
    """

    def __init__(self, tokenizer: Tokenizer, *, bos_id: int | None = None) -> None:
        """``bos_id``: put before every text prompt, where the model wants that; None where it does not.

        Raises UnsupportedTokenizerError where the decoder cannot be streamed exactly, or ``bos_id`` is not in the vocabulary.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._rules = decoder_rules(json.loads(tokenizer.to_str())["decoder"])
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        """Hidden from text unless asked for."""
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise UnsupportedTokenizerError("the tokenizer holds no token")
        self.vocab_size = 1 + max(vocabulary.values())
        """One more than the greatest id. A model's output may have more rows: those ids have no text."""
        if bos_id is not None and tokenizer.id_to_token(bos_id) is None:
            raise UnsupportedTokenizerError(f"beginning-of-sequence id {bos_id} is not in the vocabulary")
        self.bos_id = bos_id
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

        ``add_bos=False`` for a rendered chat template, which writes its own. Raises InvalidRequestError naming ``field`` for
        text that is no valid Unicode (lone surrogates).
        """
        try:
            ids = list(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequestError(field, "is not valid Unicode text") from error
        return [self.bos_id, *ids] if add_bos and self.bos_id is not None else ids

    def decode(self, ids: Sequence[int], *, show_special_tokens: bool = False, field: str = "ids") -> str:
        """The full decode. Ids that the vocabulary does not know add nothing (a model's output can have more rows than its
        tokenizer has tokens). Raises InvalidRequestError naming the first id that can be no id at all."""
        try:
            texts = self._tokenizer.decode_batch([list(ids)], skip_special_tokens=not show_special_tokens)
        except OverflowError as error:
            index = next(place for place, token in enumerate(ids) if not 0 <= token < 2**32)
            raise InvalidRequestError(f"{field}[{index}]", f"must be a token id, not {ids[index]}") from error
        return str(texts[0])

    def detokenizer(self, prompt: Sequence[int] = (), *, show_special_tokens: bool = False) -> Detokenizer:
        """A fresh incremental decoder for the output after ``prompt``. Ids without a text add nothing."""
        if self._rules.byte_level:
            return ByteLevelDetokenizer(self._byte_pieces[show_special_tokens], prompt)
        return SentencePieceDetokenizer(self._text_pieces[show_special_tokens], self._rules, prompt)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its exact name."""
        return self._tokenizer.token_to_id(token)

    def token_name(self, token: int) -> str | None:
        return self._tokenizer.id_to_token(token)

    def _shown_name(self, show_special_tokens: bool, token: int) -> str | None:
        if not 0 <= token < self.vocab_size or (token in self.special_ids and not show_special_tokens):
            return None
        return self.token_name(token)

    def _byte_piece(self, show_special_tokens: bool, token: int) -> bytes:
        name = self._shown_name(show_special_tokens, token)
        return b"" if name is None else byte_level_piece(name)

    def _text_piece(self, show_special_tokens: bool, token: int) -> Piece:
        name = self._shown_name(show_special_tokens, token)
        return None if name is None else sentence_piece(name, self._rules)
