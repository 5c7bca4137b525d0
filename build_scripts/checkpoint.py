"""A checkpoint, whatever file it came in: the description, the tensors, the tokenizer."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from build_scripts.decoder import Decoder
from build_scripts.errors import CheckpointError
from build_scripts.gguf_checkpoint import GgufCheckpoint
from build_scripts.gguf_description import describe
from build_scripts.hf_checkpoint import HfCheckpoint
from build_scripts.hf_tokenizer import HfTokenizer
from build_scripts.numerics import WeightForm
from build_scripts.tokenizer import build_tokenizer, describe_tokenizer
from build_scripts.weights import TensorSource
from engines.manifest import TokenizerInfo


class CheckpointTensors(TensorSource, Protocol):
    def formats(self) -> dict[str, str]:
        """Storage format by tensor name: "Q4_1", "BF16"."""
        ...

    def quantisation(self) -> str:
        """Matrix formats by how many tensors use them: "Q4_1 (210), Q8_0 (1)"."""
        ...


@dataclass(frozen=True)
class Checkpoint:
    kind: str
    """"gguf" or "huggingface"."""
    path: Path
    decoder: Decoder
    tensors: CheckpointTensors = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    tokenizer_info: TokenizerInfo = field(repr=False)
    licence: str | None
    """As the checkpoint states it."""


def open_checkpoint(path: Path) -> Checkpoint:
    """A GGUF file or a Hugging Face directory. Reads metadata and headers only.

    Raises CheckpointError or UnsupportedError, one sentence.
    """
    return _open_directory(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    file = GgufCheckpoint(path)
    decoder, tokenizer = describe(file), build_tokenizer(file)
    if (tokens := tokenizer.get_vocab_size(with_added_tokens=True)) > decoder.vocab_size:
        raise CheckpointError(
            f"{path.name}: the tokenizer has {tokens} tokens, the embedding has {decoder.vocab_size} rows"
        )
    info, licence = describe_tokenizer(file), file.get("general.license", str)
    file.forget_metadata()
    return Checkpoint("gguf", path, decoder, file, tokenizer, info, licence)


def _open_directory(path: Path) -> Checkpoint:
    directory = HfCheckpoint(path)
    words = HfTokenizer(path, directory.config, directory.decoder.vocab_size)
    return Checkpoint(
        "huggingface", path, directory.decoder, directory, words.tokenizer, words.info, card_licence(path)
    )


def card_licence(directory: Path) -> str | None:
    """The licence in the front matter of a model card."""
    card = directory / "README.md"
    if not card.is_file():
        return None
    found = re.match(r"---\n(?:.*\n)*?license: *(\S+)\n", card.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else None


def default_weights(checkpoint: Checkpoint) -> WeightForm:
    """The checkpoint's own numbers: the codes of a GGUF file, the floats of a directory (docs/quantisation.md has figures)."""
    if checkpoint.kind == "gguf":
        return "gguf"
    wide: dict[str, WeightForm] = {"F16": "f16", "BF16": "bf16"}
    return wide.get(checkpoint.tensors.formats()["blk.0.attn_q.weight"], "f32")
