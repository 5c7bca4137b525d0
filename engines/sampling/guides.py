"""Guides as llguidance runs them: compiled once, copied for each sequence, their masks filled in parallel.

Two threads meet here. Whoever admits a request calls :meth:`GuideCompiler.check` on a thread of its own, which compiles and keeps the
grammar; the engine thread calls :meth:`open`, which finds it and copies it in microseconds.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engines.sampling.constraint import Constraint, GuideError, Masks
from engines.sampling.params import Guide

if TYPE_CHECKING:  # a server imports the library with its first guide
    import llguidance

_FEW = 2
"""Masks up to which handing them to other threads costs more than it saves."""


class GuideConstraint:
    """One sequence's place in its grammar. Engine thread only."""

    __slots__ = ("matcher",)

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.matcher = matcher

    def advance(self, token: int) -> None:
        # A token outside the grammar, or a bound that was exceeded, turns the matcher into one that permits nothing: see fill().
        self.matcher.consume_token(token)

    def rollback(self, count: int) -> None:
        self.matcher.rollback(count)


class GuideCompiler:
    """Implements :class:`engines.sampling.constraint.Constraints` for one tokenizer."""

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        vocab_size: int,
        end_ids: Sequence[int],
        *,
        capacity: int = 128,
        threads: int = 2,
    ) -> None:
        """``tokenizer_json`` gives the text of tokenizer.json; asked when the first guide comes, because reading it takes a quarter
        of a second that a server without guided requests never spends. ``capacity``: compiled guides that are kept, the latest
        used. ``threads`` fill masks."""
        self._json = tokenizer_json
        self._vocab_size = vocab_size
        self._end_ids = list(end_ids)
        self._capacity = capacity
        self._threads = threads
        self._lock = threading.Lock()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._executor: llguidance.LLExecutor | None = None
        self._compiled: OrderedDict[Guide, llguidance.LLMatcher] = OrderedDict()

    # ------------------------------------------------------------------ any thread

    def check(self, guide: Guide) -> None:
        """Compile ``guide`` and keep it: milliseconds, without the interpreter's lock for most of them. Raises GuideError."""
        self._find(guide)

    def knows(self, guide: Guide) -> bool:
        """Whether it was compiled lately, so that :meth:`open` takes microseconds."""
        with self._lock:
            if guide not in self._compiled:
                return False
            self._compiled.move_to_end(guide)
            return True

    def open(self, guide: Guide) -> GuideConstraint:
        matcher = self._find(guide)
        with self._lock:  # no two threads may touch one matcher
            return GuideConstraint(matcher.deep_copy())

    def _find(self, guide: Guide) -> llguidance.LLMatcher:
        with self._lock:
            matcher = self._compiled.get(guide)
            if matcher is not None:
                self._compiled.move_to_end(guide)
                return matcher
            tokenizer = self._tokenizer = self._tokenizer or self._read_tokenizer()
        matcher = _compile(tokenizer, guide)
        matcher.compute_bitmask()  # the first mask costs most, and some grammars fail only then
        if matcher.is_error():
            raise GuideError(_first_line(matcher.get_error()))
        with self._lock:
            self._compiled[guide] = matcher
            while len(self._compiled) > self._capacity:
                self._compiled.popitem(last=False)
        return matcher

    def _read_tokenizer(self) -> llguidance.LLTokenizer:
        import llguidance

        return llguidance.LLTokenizer(self._json(), n_vocab=self._vocab_size, eos_token=self._end_ids)

    # ------------------------------------------------------------------ engine thread

    def fill(self, constraints: Sequence[Constraint]) -> Masks:
        import llguidance.numpy

        matchers = [constraint.matcher for constraint in constraints if isinstance(constraint, GuideConstraint)]
        words = llguidance.numpy.allocate_token_bitmask(len(matchers), self._vocab_size)
        if len(matchers) <= _FEW:
            for row, matcher in enumerate(matchers):
                llguidance.numpy.fill_next_token_bitmask(matcher, words, row)
        else:
            self._executor = self._executor or llguidance.LLExecutor(num_threads=self._threads)
            places = [(matcher, row) for row, matcher in enumerate(matchers)]
            llguidance.numpy.fill_next_token_bitmask_par(self._executor, places, words)
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        masks = bits[:, : self._vocab_size].view(np.bool_)
        for row, matcher in enumerate(matchers):
            # A failed matcher's mask permits the end alone, which would pass for an output that is complete.
            if matcher.is_error():
                masks[row] = False
        return masks


def _compile(tokenizer: llguidance.LLTokenizer, guide: Guide) -> llguidance.LLMatcher:
    """Bounded: a guide beyond these limits is refused, or ends its own request later."""
    import llguidance

    limits = llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,  # some 20 ms of compiling
        max_grammar_size=500_000,
        max_lexer_states=50_000,  # of 1 to 2 kB
        # Masks are filled on the way of everybody's next token: some 4 ms of one, in the worst case; most take 20 us.
        step_lexer_fuel=50_000,
        step_max_items=20_000,
    )
    return llguidance.LLMatcher(tokenizer, _grammar(guide), log_level=0, limits=limits)


def _grammar(guide: Guide) -> str:
    """Raises GuideError where the text is not even of its kind."""
    import llguidance

    if guide.kind == "regex":
        return str(llguidance.LLMatcher.grammar_from_regex(guide.text))
    if guide.kind == "grammar":
        return str(llguidance.LLMatcher.grammar_from_lark(guide.text))
    if guide.kind == "choice":
        options = " | ".join(json.dumps(option, ensure_ascii=False) for option in json.loads(guide.text))
        return str(llguidance.LLMatcher.grammar_from_lark(f"start: {options}"))
    # "true" is a schema as well, that of every document, but nothing that options can be written into.
    schema = "{}" if guide.text.strip() == "true" else guide.text
    try:
        # Free whitespace would let a model fill its max_tokens with blanks.
        return str(llguidance.LLMatcher.grammar_from_json_schema(schema, defaults={"whitespace_flexible": False}))
    except ValueError as error:
        raise GuideError(f"is no JSON schema that a document can satisfy: {_first_line(str(error))}") from error


def _first_line(text: str) -> str:
    """llguidance quotes the whole grammar below its reason."""
    return text.strip().split("\n", 1)[0][:500]
