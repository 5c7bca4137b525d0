"""How each family cuts text before its merges."""

from __future__ import annotations

import pytest

from build_scripts.tokenizer import PRE_TOKENIZERS


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("qwen2", ["I", "'ve", " paid", " ", "1", "2", "3", "4", " euros", "!!"]),
        ("llama-bpe", ["I", "'ve", " paid", " ", "123", "4", " euros", "!!"]),
        ("gpt-2", ["I", "'ve", " paid", " 1234", " euros", "!!"]),
        ("smollm", ["I", "'ve", " paid", " ", "1", "2", "3", "4", " euros", "!!"]),
    ],
)
def test_words_and_digits_are_cut_as_the_model_was_trained(name: str, pieces: list[str]) -> None:
    cut = PRE_TOKENIZERS[name]().pre_tokenize_str("I've paid 1234 euros!!")
    assert [text.replace("\u0120", " ") for text, _ in cut] == pieces
