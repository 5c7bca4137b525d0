"""One sequence's output: deltas that add up, stops, hidden tokens, what is held back and when it comes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine import FinishReason
from server.text.output import OutputDelta, OutputText, StopHit
from server.text.stops import StopStrings
from server.text.tokenizer import TextTokenizer
from tests.text.small_tokenizers import all_families, byte_level

FAMILIES = {name: TextTokenizer(tokenizer) for name, tokenizer in all_families().items()}
BYTES = TextTokenizer(byte_level())
END = BYTES.token_id("<|im_end|>") or 0


def run(output: OutputText, ids: list[int], cuts: list[int], reason: FinishReason) -> list[OutputDelta]:
    """Feed ids cut anywhere, as an engine does: it goes on for a while after a stop."""
    borders = sorted({0, len(ids), *(min(place, len(ids)) for place in cuts)})
    deltas = [output.feed(ids[a:b]) for a, b in pairwise(borders)]
    return [*deltas, output.finish(reason)]


def text_of(deltas: list[OutputDelta]) -> str:
    return "".join(delta.text for delta in deltas)


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.lists(st.integers(0, 420), max_size=30),
    st.lists(st.integers(0, 30), max_size=6),
    st.lists(st.text("abfox \ufffd", min_size=1, max_size=3), max_size=3),
)
def test_case_G3_any_cutting_gives_the_same_tokens_text_and_stop(
    family: str, ids: list[int], cuts: list[int], stops: list[str]
) -> None:
    tokenizer = FAMILIES[family]
    whole = OutputText(tokenizer, stop_strings=stops)
    pieces = OutputText(tokenizer, stop_strings=stops)
    one = run(whole, ids, [], FinishReason.LENGTH)
    many = run(pieces, ids, cuts, FinishReason.LENGTH)
    assert text_of(one) == text_of(many)
    assert [t for delta in one for t in delta.tokens] == [t for delta in many for t in delta.tokens]
    assert whole.stopped == pieces.stopped
    assert one[-1].reason == many[-1].reason
    full = tokenizer.decode(ids)
    assert full.startswith(text_of(one))
    if whole.stopped is None:
        assert text_of(one) == full
    else:
        assert full[len(text_of(one)) :].startswith(whole.stopped.string)


@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3, 4, 5]])
def test_case_G5_a_stop_over_three_tokens_names_the_token_that_completed_it(cuts: list[int]) -> None:
    ids = [BYTES.encode(character)[0] for character in "ab###cd"]
    output = OutputText(BYTES, stop_strings=["###"])
    deltas = run(output, ids, cuts, FinishReason.STOP_STRING)
    assert text_of(deltas) == "ab"
    assert output.stopped == StopHit("###", after_token=5)
    assert [t for delta in deltas for t in delta.tokens] == ids[:5]
    assert [delta.stopped for delta in deltas if delta.stopped] == [output.stopped]
    assert output.tokens_seen == 5


def test_case_G7_each_kind_of_end_hides_what_ended_it() -> None:
    """The table of stops: end of sequence, stop token, stop string, length; and an end token that is not to end."""
    abc = [BYTES.encode(character)[0] for character in "abc"]
    table = [
        ({END}, [], [*abc, END], FinishReason.END, "abc", abc, FinishReason.END),
        ({abc[2]}, [], abc, FinishReason.STOP_TOKEN, "ab", abc[:2], FinishReason.STOP_TOKEN),
        (set[int](), ["c"], abc, FinishReason.STOP_STRING, "ab", abc, FinishReason.STOP_STRING),
        (set[int](), ["bcd"], abc, FinishReason.LENGTH, "abc", abc, FinishReason.LENGTH),
        (set[int](), ["c"], abc, FinishReason.LENGTH, "ab", abc, FinishReason.STOP_STRING),
        (set[int](), [], [*abc, END], FinishReason.LENGTH, "abc", [*abc, END], FinishReason.LENGTH),
        ({END}, ["c"], abc, FinishReason.CANCELLED, "ab", abc, FinishReason.CANCELLED),
    ]
    for hidden, stops, ids, engine_reason, text, tokens, reason in table:
        output = OutputText(BYTES, stop_strings=stops, hidden_ids=hidden)
        deltas = run(output, ids, [1, 2], engine_reason)
        assert text_of(deltas) == text
        assert [t for delta in deltas for t in delta.tokens] == tokens
        assert deltas[-1].reason is reason


def test_case_G1_ids_run_ahead_of_half_a_character() -> None:
    euro = [BYTES.encode("€")[0]] if len(BYTES.encode("€")) == 1 else BYTES.encode("€")
    assert len(euro) > 1, "this tokenizer should not know the sign as one token"
    output = OutputText(BYTES)
    first = output.feed(euro[:1])
    assert (first.tokens, first.text) == (tuple(euro[:1]), "")
    assert output.feed(euro[1:]).text == "€"
    assert not output.finish(FinishReason.END)


def test_what_is_held_back_comes_at_the_end() -> None:
    output = OutputText(BYTES, stop_strings=["###"])
    hash_, half = BYTES.encode("#")[0], BYTES.encode("€")[0]
    assert output.feed([hash_, hash_]).text == ""
    assert output.feed([half]).text == ""
    assert output.finish(FinishReason.LENGTH).text == "##\ufffd"


def test_a_stop_that_only_the_flushed_end_completes_still_cuts() -> None:
    output = OutputText(BYTES, stop_strings=["\ufffd"])
    assert output.feed([BYTES.encode("a")[0], BYTES.encode("€")[0]]).text == "a"
    end = output.finish(FinishReason.LENGTH)
    assert (end.text, end.reason, end.stopped) == ("", FinishReason.STOP_STRING, StopHit("\ufffd", after_token=2))


def test_a_stop_in_a_run_of_byte_tokens_is_found_when_the_run_ends() -> None:
    llama = FAMILIES["llama2"]
    ids = [llama.token_id(f"<0x{byte:02X}>") or 0 for byte in "€!".encode()]
    output = OutputText(llama, stop_strings=["€"])
    assert output.feed(ids).stopped is None
    assert output.feed(llama.encode("."))
    assert output.stopped == StopHit("€", after_token=len(ids) + 1)


def test_the_prompt_gives_the_output_its_context() -> None:
    euro = BYTES.encode("€")
    output = OutputText(BYTES, prompt_ids=euro[:1])
    assert output.feed(euro[1:]).text == "€"


def test_a_stop_string_never_reaches_back_into_the_prompt() -> None:
    output = OutputText(BYTES, prompt_ids=BYTES.encode("##"), stop_strings=["###"])
    assert output.feed(BYTES.encode("#")).stopped is None
    assert output.finish(FinishReason.LENGTH).text == "#"


def test_sequences_of_one_request_share_the_stops_and_nothing_else() -> None:
    stops = StopStrings(["b"])
    first, second = (OutputText(BYTES, stop_strings=stops) for _ in range(2))
    assert first.feed(BYTES.encode("b")).stopped
    assert second.feed(BYTES.encode("a")).text == "a"


def test_tokens_after_the_stop_are_ignored() -> None:
    output = OutputText(BYTES, stop_strings=["b"])
    output.feed(BYTES.encode("b"))
    assert not output.feed(BYTES.encode("more"))
    assert output.finish(FinishReason.STOP_STRING) == OutputDelta(reason=FinishReason.STOP_STRING)


@pytest.mark.parametrize("chunk", [1, 2, 50])
def test_an_included_stop_ends_the_text_behind_it(chunk: int) -> None:
    tokenizer = TextTokenizer(byte_level())
    ids = tokenizer.encode("one two three STOP four")
    output = OutputText(tokenizer, stop_strings=["STOP", "nothing"], include_stop=True)
    text = "".join(output.feed(ids[at : at + chunk]).text for at in range(0, len(ids), chunk))
    text += output.finish(FinishReason.LENGTH).text
    assert text == "one two three STOP"
    assert output.stopped is not None
    assert output.stopped.string == "STOP"
