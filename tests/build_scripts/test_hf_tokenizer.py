"""The tokenizer of a Hugging Face directory, and what the files beside it say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from build_scripts.errors import BuildError, CheckpointError, UnsupportedError
from build_scripts.hf_tokenizer import HfTokenizer

CONFIG = {"bos_token_id": 256, "eos_token_id": 257}
ROWS = 260


def write_tokenizer(directory: Path, *, add_bos: bool = False) -> None:
    """Bytes, and three special tokens behind them."""
    vocabulary = {text: index for index, text in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>", "<|eot_id|>")])
    if add_bos:
        tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    tokenizer.save(str(directory / "tokenizer.json"))


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values))


def test_special_tokens_and_ends(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [258, 257]})
    info = HfTokenizer(tmp_path, CONFIG, ROWS).info
    assert info.end_ids == (258, 257)
    assert info.special_tokens == {"<s>": 256, "</s>": 257, "<|eot_id|>": 258}
    assert (info.bos_id, info.add_bos, info.chat_template) == (256, False, None)


def test_tokens_that_can_only_mean_the_end_are_ends(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert HfTokenizer(tmp_path, CONFIG, ROWS).info.end_ids == (257, 258)


def test_a_beginning_token_is_added_where_the_tokenizer_adds_it(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, add_bos=True)
    write_json(tmp_path / "tokenizer_config.json", {"bos_token": {"content": "<s>"}})
    info = HfTokenizer(tmp_path, {"eos_token_id": 257}, ROWS).info
    assert (info.bos_id, info.add_bos) == (256, True)


@pytest.mark.parametrize(
    "template", ["{{ a }}", [{"name": "tool", "template": "x"}, {"name": "default", "template": "{{ a }}"}]]
)
def test_the_chat_template_may_be_one_or_named(template: Any, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": template})
    assert HfTokenizer(tmp_path, CONFIG, ROWS).info.chat_template == "{{ a }}"


def test_a_template_file_of_its_own_wins(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": "old"})
    (tmp_path / "chat_template.jinja").write_text("new")
    assert HfTokenizer(tmp_path, CONFIG, ROWS).info.chat_template == "new"


def test_a_vocabulary_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match=r"'<\|eot_id\|>' has id 258, the embedding has 258 rows"):
        HfTokenizer(tmp_path, CONFIG, 258)


def no_end(directory: Path) -> None:
    write_tokenizer(directory)
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = []
    write_json(directory / "tokenizer.json", tokenizer)


def end_outside(directory: Path) -> None:
    write_tokenizer(directory)
    write_json(directory / "generation_config.json", {"eos_token_id": 9999})


def broken(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{")


def sentencepiece_only(directory: Path) -> None:
    (directory / "tokenizer.model").write_bytes(b"")


@pytest.mark.parametrize(
    ("prepare", "kind", "says"),
    [
        (no_end, CheckpointError, "names an eos_token_id"),
        (end_outside, CheckpointError, "end-of-sequence id 9999 is outside the vocabulary of 260"),
        (broken, CheckpointError, r"cannot read tokenizer\.json"),
        (sentencepiece_only, UnsupportedError, r"tokenizer\.model alone is not implemented"),
        (lambda _: None, CheckpointError, r"holds no tokenizer\.json"),
    ],
)
def test_faults_end_in_one_sentence(prepare: Any, kind: type[BuildError], says: str, tmp_path: Path) -> None:
    prepare(tmp_path)
    with pytest.raises(kind, match=says):
        HfTokenizer(tmp_path, {}, ROWS)
