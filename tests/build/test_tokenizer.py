"""tokenizer.json out of a checkpoint's metadata: exact round trips, special tokens whole, nothing prepended."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.gguf_checkpoint import GgufCheckpoint
from build_scripts.tokenizer import build_tokenizer, describe_tokenizer
from tests.build.tiny_gguf import SPECIALS, vocabulary, write_tiny_gguf


@cache
def tiny() -> Tokenizer:
    with TemporaryDirectory() as directory:
        return build_tokenizer(GgufCheckpoint(write_tiny_gguf(Path(directory) / "tiny.gguf")))


def changed(tmp_path: Path, key: str, value: object) -> GgufCheckpoint:
    """The tiny checkpoint with one key of its metadata replaced."""

    def edit(writer: gguf.GGUFWriter) -> None:
        kind = writer.kv_data[0][key].type
        sub_type = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
        writer.kv_data[0][key] = gguf.gguf_writer.GGUFValue(value=value, type=kind, sub_type=sub_type)

    return GgufCheckpoint(write_tiny_gguf(tmp_path / "changed.gguf", edit=edit))


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80))
def test_every_text_comes_back(text: str) -> None:
    ids = tiny().encode(text).ids
    assert tiny().decode(ids, skip_special_tokens=False) == text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*SPECIALS, "a", " ", "\n", "the", "1"]), max_size=12))
def test_special_tokens_are_matched_whole_wherever_they_stand(parts: list[str]) -> None:
    text = "".join(parts)
    encoding = tiny().encode(text)
    assert [token for token in encoding.tokens if token in SPECIALS] == [part for part in parts if part in SPECIALS]
    assert tiny().decode(encoding.ids, skip_special_tokens=False) == text


def test_pieces_of_a_special_token_are_text() -> None:
    assert not set(tiny().encode("<|im_start |> <|im_ end|>").tokens) & set(SPECIALS)


def test_nothing_is_prepended_and_merges_apply() -> None:
    assert tiny().encode("the the").tokens == ["the", "Ġthe"]
    assert tiny().encode("").ids == []


def test_each_digit_stands_alone() -> None:
    assert tiny().encode("a 12").tokens == ["a", "Ġ", "1", "2"]


def test_the_saved_file_is_plain_byte_level() -> None:
    saved = json.loads(tiny().to_str())
    assert saved["decoder"]["type"] == "ByteLevel"
    assert saved["model"]["byte_fallback"] is False
    assert saved["post_processor"] is None
    assert saved["normalizer"] is None


def test_the_tokens_keep_their_ids() -> None:
    assert [tiny().id_to_token(index) for index in range(len(vocabulary()))] == vocabulary()


def test_special_tokens_are_hidden_from_text() -> None:
    ids = tiny().encode("<|im_start|>a<|im_end|>").ids
    assert tiny().decode(ids) == "a"


def test_facts_for_the_manifest(tmp_path: Path) -> None:
    info = describe_tokenizer(GgufCheckpoint(write_tiny_gguf(tmp_path / "tiny.gguf")))
    assert info.end_ids == (2, 0)
    assert (info.bos_id, info.add_bos) == (1, False)
    assert info.special_tokens == {text: index for index, text in enumerate(SPECIALS)}
    assert info.chat_template is not None
    assert "<|im_start|>" in info.chat_template


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("tokenizer.ggml.pre", "qwen-next", 'tokenizer.ggml.pre = "qwen-next" is not implemented'),
        ("tokenizer.ggml.model", "llama", 'tokenizer.ggml.model = "llama" is not implemented'),
    ],
)
def test_another_kind_of_tokenizer_is_refused_by_name(key: str, value: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=says):
        build_tokenizer(changed(tmp_path, key, value))


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("tokenizer.ggml.merges", ["t h", "th"], "not two tokens"),
        ("tokenizer.ggml.merges", ["t zz"], "contradict each other"),
        ("tokenizer.ggml.tokens", ["a", "a"], "has 2 tokens and the types of"),
        ("tokenizer.ggml.tokens", ["a", *vocabulary()[:-1]], "holds 1 tokens twice"),
        ("tokenizer.ggml.eos_token_id", 100_000, "outside the vocabulary"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(key: str, value: object, says: str, tmp_path: Path) -> None:
    checkpoint = changed(tmp_path, key, value)
    with pytest.raises(CheckpointError, match=says):
        describe_and_build(checkpoint)


def describe_and_build(checkpoint: GgufCheckpoint) -> None:
    describe_tokenizer(checkpoint)
    build_tokenizer(checkpoint)
