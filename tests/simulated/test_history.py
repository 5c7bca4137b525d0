"""The state of a history is a function of its tokens, whatever way they came."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engines.simulated.hashing import cell, cells, contribution, contributions, mix, mix_all
from engines.simulated.history import History

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=70)
BLOCK_SIZES = st.sampled_from([1, 2, 4, 32])


@given(TOKENS, BLOCK_SIZES, st.data())
def test_the_state_does_not_depend_on_the_cuts(tokens: list[int], size: int, data: st.DataObject) -> None:
    history = History(size)
    at = 0
    while at < len(tokens):
        step = data.draw(st.integers(1, len(tokens) - at))
        history.extend(tokens[at : at + step])
        at += step
    one_by_one = History(size)
    for token in tokens:
        one_by_one.append(token)
    assert history.state == one_by_one.state == History(size, tokens).state
    assert list(history.borders) == list(one_by_one.borders)


@given(TOKENS, BLOCK_SIZES, st.data())
def test_rolling_back_is_never_having_gone_on(tokens: list[int], size: int, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, len(tokens)))
    history = History(size, tokens)
    before = history.state_at(kept)
    history.truncate(kept)
    assert history.tokens.tolist() == tokens[:kept]
    assert history.state == before == History(size, tokens[:kept]).state
    history.extend(tokens[kept:])
    assert history.state == History(size, tokens).state


@given(st.lists(st.integers(0, 50), min_size=2, max_size=40), BLOCK_SIZES, st.data())
def test_any_other_history_has_another_state(tokens: list[int], size: int, data: st.DataObject) -> None:
    """One token changed, two swapped, one dropped: also where the last block stays as it was."""
    at = data.draw(st.integers(0, len(tokens) - 2))
    changed = [*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]]
    dropped = tokens[:at] + tokens[at + 1 :]
    swapped = [*tokens[:at], tokens[at + 1], tokens[at], *tokens[at + 2 :]]
    states = {tuple(text): History(size, text).state for text in (tokens, changed, dropped, swapped)}
    assert len(set(states.values())) == len(states)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_arrays_and_integers_mix_alike(word: int, origin: int, token: int, index: int) -> None:
    words, origins = np.array([word], dtype=np.uint64), np.array([origin], dtype=np.uint64)
    assert int(mix_all(words)[0]) == mix(word)
    assert int(cells(np.array([token]), np.array([index]))[0]) == cell(token, index)
    assert int(contributions(words, origins, np.array([index]))[0]) == contribution(word, origin, index)
