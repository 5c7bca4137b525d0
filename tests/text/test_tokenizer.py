"""Text to ids and back, as the model's tokenizer does it, and what a tokenizer.json must not smuggle in."""

from __future__ import annotations

import ctypes
import json
import random
import sys
import threading
from pathlib import Path
from typing import ClassVar

import pytest
from tokenizers import Tokenizer, decoders, models, processors

from server.errors import InvalidRequestError
from server.text.tokenizer import TextTokenizer, UnsupportedTokenizerError
from tests.text.small_tokenizers import byte_level, llama2_like, metaspace


def test_ids_are_the_librarys_own() -> None:
    text = "the quick brown fox 日本 <|im_end|>"
    assert TextTokenizer(byte_level()).encode(text) == byte_level().encode(text, add_special_tokens=False).ids


def test_special_tokens_written_in_the_text_become_their_ids() -> None:
    tokenizer = TextTokenizer(byte_level())
    assert tokenizer.token_id("<|im_start|>") in tokenizer.encode("<|im_start|>user")


def test_the_beginning_token_is_added_where_the_manifest_says_so_and_never_twice() -> None:
    raw = Tokenizer.from_str(byte_level().to_str())
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    assert TextTokenizer(raw, bos_id=0).encode("fox")[:2] == [0, *TextTokenizer(raw).encode("fox")[:1]]
    assert 0 not in TextTokenizer(raw).encode("fox")
    assert 0 not in TextTokenizer(raw, bos_id=0).encode("fox", add_bos=False)


def test_an_unknown_beginning_token_is_refused_at_load() -> None:
    with pytest.raises(UnsupportedTokenizerError, match="id 9999 is not in the vocabulary"):
        TextTokenizer(byte_level(), bos_id=9999)


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    """A tokenizer.json saved during training often truncates: a prompt would be cut without a word."""
    raw = Tokenizer.from_str(byte_level().to_str())
    raw.enable_truncation(4)
    raw.enable_padding(length=64)
    text = "the quick brown fox " * 20
    assert TextTokenizer.from_json(raw.to_str()).encode(text) == TextTokenizer(byte_level()).encode(text)


def test_lone_surrogates_are_refused_by_the_fields_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"^prompt\.text: is not valid Unicode text$"):
        TextTokenizer(byte_level()).encode("a\ud800b")


@pytest.mark.parametrize("bad", [-1, 2**32, 2**80])
def test_what_can_be_no_id_is_refused_by_its_place(bad: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"^ids\[1\]: must be a token id, not {bad}$"):
        TextTokenizer(byte_level()).decode([5, bad])


def test_decode_hides_special_tokens_unless_asked() -> None:
    tokenizer = TextTokenizer(byte_level())
    ids = tokenizer.encode("<s>fox")
    assert tokenizer.decode(ids) == "fox"
    assert tokenizer.decode(ids, show_special_tokens=True) == "<s>fox"


def test_vocabulary_facts() -> None:
    tokenizer = TextTokenizer(byte_level())
    assert tokenizer.special_ids == {0, 1, 2, 3}
    assert tokenizer.vocab_size == byte_level().get_vocab_size()
    assert tokenizer.token_name(3) == "<|im_end|>"
    assert tokenizer.token_id("no such token") is None


def test_from_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_level().to_str(), encoding="utf-8")
    assert TextTokenizer.from_file(path).encode("fox") == TextTokenizer(byte_level()).encode("fox")


def test_a_broken_file_is_one_clear_error() -> None:
    with pytest.raises(UnsupportedTokenizerError, match=r"^tokenizer.json cannot be read: "):
        TextTokenizer.from_json("{}")


def with_decoder(decoder: object) -> str:
    return json.dumps(json.loads(llama2_like().to_str()) | {"decoder": decoder})


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (None, "missing"),
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece"),
        # What some converters write for byte-level models; its text has literal stand-ins for spaces.
        ({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}, r"ByteFallback \+ Fuse"),
    ],
)
def test_decoders_that_cannot_be_streamed_exactly_are_refused_by_name(decoder: object, named: str) -> None:
    with pytest.raises(UnsupportedTokenizerError, match=f"decoder is {named}; supported are"):
        TextTokenizer.from_json(with_decoder(decoder))


def test_parameters_that_cannot_be_streamed_exactly_are_refused() -> None:
    fallback = [decoders.ByteFallback(), decoders.Fuse()]
    for steps, problem in (
        ([decoders.Replace("▁", "_"), *fallback], "one fixed string into a space"),
        ([decoders.Replace("▁", " "), *fallback, decoders.Strip(" ", 1, 1)], "leading spaces only"),
    ):
        tokenizer = Tokenizer.from_str(llama2_like().to_str())
        tokenizer.decoder = decoders.Sequence(steps)
        with pytest.raises(UnsupportedTokenizerError, match=problem):
            TextTokenizer(tokenizer)


def test_a_sequence_of_one_is_its_only_step() -> None:
    tokenizer = Tokenizer.from_str(metaspace().to_str())
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace()])
    assert TextTokenizer(tokenizer).detokenizer().feed(5) == tokenizer.decode([5])


def test_a_tokenizer_without_any_token_is_no_tokenizer() -> None:
    empty = Tokenizer(models.BPE())
    empty.decoder = decoders.ByteLevel()
    with pytest.raises(UnsupportedTokenizerError, match="holds no token"):
        TextTokenizer(empty)


@pytest.mark.parametrize("work", ["encode", "decode"])
def test_case_C6_long_work_lets_other_threads_run(work: str) -> None:
    """The interpreter's lock is given up: a thread that only counts goes on counting meanwhile."""
    tokenizer = TextTokenizer(byte_level())
    text = "the quick brown fox " * 20_000
    ids = tokenizer.encode(text)

    def turns_meanwhile() -> int:
        worker = threading.Thread(target=lambda: tokenizer.encode(text) if work == "encode" else tokenizer.decode(ids))
        worker.start()
        turns = 0
        while worker.is_alive():
            turns += 1
        return turns

    # More than once: on a busy machine the work may be over before this thread gets a processor.
    held = "the lock was held: this thread had only the turns that the switch interval gave it"
    assert any(turns_meanwhile() > 10_000 for _ in range(10)), held


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc for the memory in use")
def test_no_word_of_a_text_stays_in_memory() -> None:
    """The library would keep 2,000 words of 200 letters for good: 13 MB, which outlive the tokenizer."""
    tokenizer = TextTokenizer(byte_level())
    dice = random.Random(0)  # noqa: S311 - dice
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=200)) for _ in range(2_000)]
    tokenizer.encode(words[0])
    before = memory_in_use()
    for word in words:
        tokenizer.encode(word)
    assert memory_in_use() - before < 1_000_000


_COUNTS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


def memory_in_use() -> int:
    """Bytes that malloc has handed out, mapped ones included."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("no mallinfo2 here")
    libc.mallinfo2.restype = _MallInfo
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


class _MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in _COUNTS]
