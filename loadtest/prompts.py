"""Prompts of exact lengths. Tokens are drawn, so nothing is cached by accident, and shared where the workload shares them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from loadtest.errors import WorkloadError
from loadtest.randomness import generator
from loadtest.sessions import Session

Ids: TypeAlias = npt.NDArray[np.int32]

EDGE = 0.02
"""Share of the vocabulary left out at either end, where models keep their special tokens."""
MIN_WORDS = 256


class TokenSpace:
    """The tokens that prompts are made of. With ``pieces``, any sequence of them is the tokenization of its own text."""

    def __init__(self, ids: Ids, pieces: list[str] | None = None) -> None:
        self.ids = ids
        self.pieces = pieces
        self._place = {int(token): place for place, token in enumerate(ids)} if pieces else {}

    def text(self, ids: Ids) -> str:
        """The text whose tokenization is ``ids``. Raises WorkloadError where the space knows no text."""
        if self.pieces is None:
            raise WorkloadError("this server wants text: give --tokenizer, the model's tokenizer.json")
        return "".join(self.pieces[self._place[int(token)]] for token in ids)


def id_space(vocab_size: int) -> TokenSpace:
    """Any ordinary token of a vocabulary: for servers that take token ids."""
    edge = int(vocab_size * EDGE)
    return TokenSpace(np.arange(edge, vocab_size - edge, dtype=np.int32))


def word_space(path: Path) -> TokenSpace:
    """Tokens that are a space and a lower-case word: tokenizers split before the space, so a text of n of them has n tokens.

    The law is checked on a sample. Raises WorkloadError where the file cannot be read or the tokenizer does not keep it.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise WorkloadError(f"--tokenizer: cannot read {path}: {error}") from error
    words = sorted((token, text) for text, token in tokenizer.get_vocab().items() if _is_word(text))
    if len(words) < MIN_WORDS:
        raise WorkloadError(f"--tokenizer: {path} has {len(words)} words of its own; {MIN_WORDS} are needed")
    space = TokenSpace(np.array([token for token, _ in words], np.int32), [" " + text[1:] for _, text in words])
    sample = generator(0, "word space").choice(space.ids, 2000).astype(np.int32)
    encoded = tokenizer.encode(space.text(sample), add_special_tokens=False).ids
    if encoded != sample.tolist():
        raise WorkloadError(
            f"--tokenizer: {path} does not split text before spaces; prompts would not have exact lengths"
        )
    return space


def _is_word(piece: str) -> bool:
    return piece[0] in "Ġ▁" and len(piece) > 2 and piece[1:].isascii() and piece[1:].isalpha() and piece[1:].islower()


class PromptMaker:
    """Draws what sessions send. Deterministic: the same seed gives the same tokens in any process."""

    def __init__(self, space: TokenSpace, seed: int) -> None:
        self.space = space
        self._seed = seed
        self._prefixes: dict[tuple[int, int], Ids] = {}

    def first(self, session: Session) -> Ids:
        """The first turn's prompt."""
        fresh = session.turns[0].fresh_tokens
        if session.given is not None:
            return np.array(session.given.token_ids, np.int32)
        if session.blocks:
            return self._from_blocks(session, fresh)
        return np.concatenate([self._prefix(session), self._draw("prompt", session.index, fresh)])

    def later(self, session: Session, turn: int) -> Ids:
        """What a later turn adds to the conversation."""
        return self._draw(f"turn {turn}", session.index, session.turns[turn].fresh_tokens)

    def _prefix(self, session: Session) -> Ids:
        key = session.prefix_group, session.prefix_tokens
        if key not in self._prefixes:
            self._prefixes[key] = self._draw("prefix", session.prefix_group, session.prefix_tokens)
        return self._prefixes[key]

    def _from_blocks(self, session: Session, tokens: int) -> Ids:
        """Each block's id decides its tokens; a recording's hashes cover only full blocks, so the tail is the session's own."""
        parts = [self._draw("block", block, session.block_size) for block in session.blocks]
        joined = np.concatenate(parts)[:tokens]
        tail = self._draw("prompt", session.index, tokens - len(joined))
        return np.concatenate([joined, tail])

    def _draw(self, purpose: str, index: int, count: int) -> Ids:
        rng = generator(self._seed, purpose, index)
        return self.space.ids[rng.integers(len(self.space.ids), size=count)].astype(np.int32, copy=False)
