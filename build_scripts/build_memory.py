"""What a build holds at most: while it reads and writes the weights, and while its proof runs the engine.

Resident bytes, mapped pages among them: the kernel may drop those, and a machine that must drop them is slow. Every constant was
fitted to builds of two sizes in all forms; docs/models.md has the table, and what the sum is off by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from build_scripts.decoder import Decoder, Shape
from build_scripts.profile import LONGEST_CHUNK
from build_scripts.verify import MOST_SCORED

PROCESS_BYTES = 170_000_000
"""Interpreter, library, and what the allocator keeps."""
LAYER_BYTES = 2_500_000
"""Of a layer's graph and kernels, and of its narrow matrices, which are packed a second time for steps of many tokens."""
WRITING_BYTES = 400_000_000
"""As PROCESS_BYTES, while the engine is written; conversions of a run of rows among them."""
TOKEN_BYTES = {"gguf": 1400, "huggingface": 1200}
"""By kind of checkpoint: of an entry of the vocabulary, in the reader's metadata and in the tokenizers that are made of it."""
FURTHER_FORM_BYTES = 80_000_000
"""The graph and the kernels of each further form that an engine of two forms of the weights compiles, those aside."""
CONSTANT_SHARE = 0.25
"""Of the bytes of groups' scales and zeros, beside the one copy that is made of them when the graph is compiled: what that leaves."""
_STAGINGS = {"bf16": 1, "f32": 2}
"""By activations: how often the floats of a step's activations and logits are held."""


def checkpoint_bytes(decoder: Decoder, formats: dict[str, str], kind: str) -> int:
    """Of an open checkpoint: its vocabulary, and of a GGUF file the pages that were read, which stay mapped."""
    words = decoder.vocab_size * TOKEN_BYTES[kind]
    if kind != "gguf":
        return words
    return words + sum(_file_bytes(shape, formats[name]) for name, shape in decoder.tensors().items())


def _file_bytes(shape: Shape, stored: str) -> int:
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[stored]]
    return int(math.prod(shape) * size // values)


def writing(decoder: Decoder, weights: int) -> int:
    """The result and the largest tensor, widened."""
    return weights + 4 * max(math.prod(shape) for shape in decoder.tensors().values()) + WRITING_BYTES


def proving(decoder: Decoder, weights: int, packed: int, constants: int, activations: str) -> int:
    """``weights``: on disk, mapped. ``packed``: as the library holds them. ``constants``: of groups. Keys, values and checkpoint aside."""
    tokens = min(LONGEST_CHUNK, decoder.static_context)
    step = 4 * (tokens * floats_per_token(decoder) + MOST_SCORED * decoder.vocab_size)
    process = PROCESS_BYTES + LAYER_BYTES * decoder.layers
    return weights + packed + int(CONSTANT_SHARE * constants) + _STAGINGS[activations] * step + process


def floats_per_token(decoder: Decoder) -> int:
    """Activations of one layer, by token."""
    heads = (decoder.heads + 2 * decoder.kv_heads) * decoder.head_dim
    return 4 * decoder.hidden + 2 * decoder.intermediate + heads


def never_packed(decoder: Decoder) -> Sequence[str]:
    """An embedding that is no head is only looked up, in the mapped file."""
    return () if decoder.tied_embeddings else ("token_embd.weight",)
