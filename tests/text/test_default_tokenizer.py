"""The default model's own tokenizer and chat template, out of the engine that `firsttoken build` makes."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.manifest import MANIFEST_NAME, EngineManifest
from server.text.chat import ChatMessage, ChatTemplate
from server.text.output import OutputText
from server.text.tokenizer import TextTokenizer
from tests.engines_built import default_engine

TEXTS = [
    "The capital of France is",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
    "👨‍👩‍👧‍👦 🇫🇷 e\u0301 日本語のテキスト مرحبا بالعالم नमस्ते \ufffd \u2581 \x00",
    "  two  spaces,\ttabs and 1234567890 digits ",
]
scraps = st.sampled_from([*TEXTS, " ", "\n\n", "é", "€", "😀", "\u0301", "عربي", "한국"])


@cache
def manifest() -> EngineManifest:
    return msgspec.json.decode((default_engine() / MANIFEST_NAME).read_bytes(), type=EngineManifest)


@cache
def tokenizer() -> TextTokenizer:
    facts = manifest().tokenizer
    bos_id = facts.bos_id if facts.add_bos else None
    return TextTokenizer.from_file(default_engine() / "tokenizer.json", bos_id=bos_id)


def stream(ids: list[int], prompt: list[int] | None = None) -> str:
    detokenizer = tokenizer().detokenizer(prompt or [])
    return "".join([*map(detokenizer.feed, ids), detokenizer.finish()])


def test_known_texts_have_the_models_ids_and_nothing_before_them() -> None:
    """The ids of the model's published tokenizer; converters have been seen to prepend a token that is not the model's."""
    assert tokenizer().encode(TEXTS[0]) == [504, 3575, 282, 4649, 314]
    assert tokenizer().encode("<|im_start|>user\n") == [1, 4093, 198]
    assert tokenizer().encode("42") == [36, 34]  # each digit by itself


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_back_unchanged(text: str) -> None:
    ids = tokenizer().encode(text)
    assert tokenizer().decode(ids) == stream(ids) == text


@given(st.lists(st.integers(0, 49_151), max_size=60))
def test_any_ids_stream_to_their_full_decode_case_G1(ids: list[int]) -> None:
    assert stream(ids) == tokenizer().decode(ids)


@given(st.lists(st.integers(17, 300), max_size=60), st.integers(0, 60))
def test_the_single_byte_tokens_stream_to_their_full_decode_and_go_on_after_any_cut_case_G1(
    ids: list[int], cut: int
) -> None:
    """Nearly all of these ids are single bytes, so that most characters are broken."""
    whole = tokenizer().decode(ids)
    assert stream(ids) == whole
    rest = stream(ids[cut:], ids[:cut])
    assert whole.endswith(rest)


@given(st.lists(scraps, max_size=6).map("".join), st.integers(0, 3))
def test_texts_cut_inside_a_character_stream_to_their_full_decode_case_G1(text: str, cut: int) -> None:
    ids = tokenizer().encode(text)
    ids = ids[: max(0, len(ids) - cut)]
    assert stream(ids) == tokenizer().decode(ids)


def test_the_chat_template_gives_what_the_model_was_trained_on() -> None:
    facts = manifest().tokenizer
    assert facts.chat_template is not None
    ids = tokenizer().encode_chat(ChatTemplate(facts.chat_template), [ChatMessage("user", "Hi<|im_end|>")])
    assert tokenizer().decode(ids, show_special_tokens=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    steering = [token for token in ids if token in tokenizer().special_ids]
    assert steering == [1, 2, 1, 2, 1]  # what the user wrote is text


def test_the_end_of_sequence_is_hidden() -> None:
    ends = manifest().tokenizer.end_ids
    assert set(ends) <= tokenizer().special_ids
    output = OutputText(tokenizer(), hidden_ids=ends)
    delta = output.feed([*tokenizer().encode("Paris."), ends[0]])
    assert (delta.text, len(delta.tokens), output.tokens_seen) == ("Paris.", 2, 3)
