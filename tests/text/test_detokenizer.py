"""Law 4: the streamed text is the tokenizer's full decode, whatever the ids and however they are cut (case_G1 .. case_G3)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from server.text.pieces import byte_level_piece
from server.text.tokenizer import TextTokenizer
from tests.text.small_tokenizers import all_families, byte_level

FAMILIES = {name: TextTokenizer(tokenizer) for name, tokenizer in all_families().items()}
families = st.sampled_from(sorted(FAMILIES))
# Ids beyond the vocabulary too: a model can have more rows than its tokenizer has tokens.
random_ids = st.lists(st.integers(0, 440), max_size=40)
scraps = ["👨‍👩‍👧‍👦", "🇫🇷", "e\u0301", "日本", "مرحبا", "नमस्ते", " ", "  ", "\ufffd", "\u2581", "\x00", "the fox"]
nasty_texts = st.lists(st.one_of(st.sampled_from(scraps), st.text(max_size=4)), max_size=8).map("".join)
BYTE_IDS = {byte_level_piece(name): index for name, index in byte_level().get_vocab().items() if len(name) == 1}


def stream(tokenizer: TextTokenizer, ids: list[int], prompt: list[int] | None = None, show: bool = False) -> str:
    detokenizer = tokenizer.detokenizer(prompt or [], show_special_tokens=show)
    return "".join([*map(detokenizer.feed, ids), detokenizer.finish()])


def token(tokenizer: TextTokenizer, name: str) -> int:
    found = tokenizer.token_id(name)
    assert found is not None, name
    return found


def fox(tokenizer: TextTokenizer) -> int:
    """A plain text token that every family has."""
    return tokenizer.encode("fox")[-1]


def byte_ids(data: bytes) -> list[int]:
    return [BYTE_IDS[bytes((byte,))] for byte in data]


@given(families, random_ids, st.booleans())
def test_case_G1_any_ids_stream_to_their_full_decode(family: str, ids: list[int], show: bool) -> None:
    tokenizer = FAMILIES[family]
    assert stream(tokenizer, ids, show=show) == tokenizer.decode(ids, show_special_tokens=show)


@given(nasty_texts)
def test_case_G2_texts_of_all_scripts_come_back_unchanged(text: str) -> None:
    tokenizer = FAMILIES["byte-level"]
    assert stream(tokenizer, tokenizer.encode(text)) == text


@given(families, nasty_texts, st.integers(0, 3))
def test_case_G1_an_output_cut_inside_a_character_ends_as_its_full_decode(family: str, text: str, cut: int) -> None:
    tokenizer = FAMILIES[family]
    ids = tokenizer.encode(text)
    ids = ids[: max(0, len(ids) - cut)]
    assert stream(tokenizer, ids) == tokenizer.decode(ids)


@given(families, random_ids, random_ids)
def test_case_G3_after_a_whole_prompt_the_text_is_what_the_full_decode_adds(
    family: str, start: list[int], ids: list[int]
) -> None:
    tokenizer = FAMILIES[family]
    prompt = [*start, fox(tokenizer)]  # ends outside any character and any run of byte tokens
    before, after = tokenizer.decode(prompt), tokenizer.decode(prompt + ids)
    assert after.startswith(before)
    assert stream(tokenizer, ids, prompt) == after[len(before) :]


def characters_with_bytes_from(data: bytes, start: int) -> str:
    """Oracle: the characters of a lossy UTF-8 decode that hold a byte at or after ``start``, found by brute force."""
    text = data.decode(errors="replace")
    kept, position = "", 0
    for place, character in enumerate(text):
        halves = text[: place + 1], text[place + 1 :]
        ends = (end for end in range(position + 1, len(data) + 1) if _decoded(data, end) == halves)
        position = next(ends)
        if position > start:
            kept += character
    return kept


def _decoded(data: bytes, cut: int) -> tuple[str, str]:
    return data[:cut].decode(errors="replace"), data[cut:].decode(errors="replace")


byte_scraps = [b"a", b"\xc3\xa9", b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"\xef\xbf\xbd", b"\x80", b"\xc3", b"\xe2\x82"]
byte_scraps += [b"\xf0\x9f", b"\xf0", b"\xff", b"\xed\xa0\x80", b"\xe0\x80", b"\xef\xbf", b"\xbd", b"\xc0\xaf", b"\xa9"]
raw_bytes = st.lists(st.sampled_from(byte_scraps), max_size=6).map(b"".join)


@settings(max_examples=300)
@given(raw_bytes, raw_bytes)
def test_a_character_that_the_prompt_left_unfinished_is_the_outputs_once_it_adds_a_byte(
    prompt: bytes, output: bytes
) -> None:
    tokenizer = FAMILIES["byte-level"]
    expected = characters_with_bytes_from(prompt + output, len(prompt))
    assert stream(tokenizer, byte_ids(output), byte_ids(prompt)) == expected


def test_the_oracle_itself_knows_plain_cases() -> None:
    assert characters_with_bytes_from(b"caf\xc3\xa9!", 4) == "é!"
    assert characters_with_bytes_from(b"caf\xc3x", 4) == "x"
    assert characters_with_bytes_from(b"ab", 2) == ""


def test_a_run_of_byte_tokens_begun_by_the_prompt_is_finished_by_the_output() -> None:
    tokenizer = FAMILIES["llama2"]
    run = [token(tokenizer, f"<0x{byte:02X}>") for byte in "é€".encode()]
    dot, orphan = token(tokenizer, "."), token(tokenizer, "<0xFF>")
    assert stream(tokenizer, [*run[3:], dot], [dot, *run[:3]]) == "€."  # é is the prompt's
    assert stream(tokenizer, [dot], [dot, *run]) == "."
    assert (
        stream(tokenizer, [orphan, dot], [dot, *run]) == "\ufffd."
    )  # the full decode shows six, five are the prompt's


@given(families, random_ids, random_ids, st.data())
def test_case_G3_cutting_an_output_and_going_on_from_the_cut_loses_no_text(
    family: str, ids: list[int], more: list[int], data: st.DataObject
) -> None:
    """A client that sends prompt and output back as its next prompt sees the text go on, up to what stood at the cut itself."""
    tokenizer = FAMILIES[family]
    ids = [*ids, fox(tokenizer), *more]
    whole = stream(tokenizer, ids)
    cut = data.draw(st.integers(0, len(ids)))
    rest = stream(tokenizer, ids[cut:], ids[:cut])
    assert whole.endswith(rest)
    assert len(rest) >= len(whole) - len(stream(tokenizer, ids[:cut]))


def test_case_G2_a_leading_space_stays_after_a_prompt_and_goes_at_the_start() -> None:
    for tokenizer in (FAMILIES["llama2"], FAMILIES["metaspace-always"]):
        brown = token(tokenizer, "▁brown")
        assert stream(tokenizer, [brown]) == "brown"
        assert stream(tokenizer, [brown], [token(tokenizer, "▁the")]) == " brown"
        assert stream(tokenizer, [brown], [token(tokenizer, "<s>")]) == "brown"  # a hidden token is no text


def test_case_G1_half_a_character_is_held_back_and_then_whole() -> None:
    detokenizer = FAMILIES["byte-level"].detokenizer()
    emitted = [detokenizer.feed(token) for token in byte_ids("é€😀".encode())]
    assert emitted == ["", "é", "", "", "€", "", "", "", "😀"]


def test_stray_bytes_come_out_at_once_and_hold_back_nothing() -> None:
    detokenizer = FAMILIES["byte-level"].detokenizer()
    orphan = byte_ids(b"\x80")[0]
    assert {detokenizer.feed(orphan) for _ in range(10_000)} == {"\ufffd"}
    assert detokenizer.finish() == ""


def test_case_C5_each_token_is_looked_up_in_the_vocabulary_once() -> None:
    lookups: list[int] = []

    class Counting(TextTokenizer):
        def token_name(self, token: int) -> str | None:
            lookups.append(token)
            return super().token_name(token)

    tokenizer = Counting(byte_level())
    ids = tokenizer.encode("the quick brown fox " * 200)
    for _ in range(3):
        stream(tokenizer, ids)
    assert sorted(lookups) == sorted(set(ids))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_special_tokens_show_only_when_asked_for(family: str) -> None:
    tokenizer = FAMILIES[family]
    ids = [token(tokenizer, "<s>"), fox(tokenizer), token(tokenizer, "</s>")]
    assert stream(tokenizer, ids, show=True).startswith("<s>")
    assert "s>" not in stream(tokenizer, ids)


def test_an_added_token_with_characters_outside_the_byte_alphabet_is_its_own_text() -> None:
    tokenizer: Tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_tokens([AddedToken("日本 !", special=False, normalized=False)])
    text = TextTokenizer(tokenizer)
    assert stream(text, text.encode("x日本 !x")) == "x日本 !x"


def test_the_worked_example_of_docs_text() -> None:
    detokenizer = FAMILIES["byte-level"].detokenizer()
    table = [
        (b" \xf0", " "),
        (b"\x9f\x98", ""),
        (b"\x80", "\U0001f600"),
        (b"\xe2\x82", ""),
        (b"A", "\ufffdA"),
        (b"\xc3", ""),
    ]
    for data, expected in table:
        assert "".join(map(detokenizer.feed, byte_ids(data))) == expected
    assert detokenizer.finish() == "\ufffd"
