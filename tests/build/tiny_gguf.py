"""A tiny Llama in a GGUF file, as llama.cpp's converter would write it: random weights, a byte-level vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import gguf
import numpy as np

Kind: TypeAlias = gguf.GGMLQuantizationType

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ the", "i n", "e r", "Ġ a", "o n", "r e")


@dataclass(frozen=True)
class TinyShape:
    layers: int = 2
    hidden: int = 64
    intermediate: int = 96
    heads: int = 2
    kv_heads: int = 1
    context: int = 256
    tied: bool = True

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def vocabulary() -> list[str]:
    return [*SPECIALS, *byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]


def write_tiny_gguf(
    path: Path,
    *,
    shape: TinyShape | None = None,
    matrices: Kind = Kind.Q4_1,
    embeddings: Kind = Kind.Q8_0,
    seed: int = 0,
    damping: float = 1.0,
    edit: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """``edit`` may add keys and tensors before the file is written. ``damping`` below 1 shrinks what a layer adds to the residual
    stream, as in tests/build_scripts/small_models.py."""
    shape = shape or TinyShape()
    writer = gguf.GGUFWriter(path, "llama")
    _add_shape(writer, shape)
    _add_tokenizer(writer)
    random = np.random.default_rng(seed)
    for name, size in _tensors(shape).items():
        values = random.standard_normal(size) * (2.0 / np.sqrt(size[-1]) if len(size) > 1 else 0.1)
        values *= damping if name.endswith(("attn_output.weight", "ffn_down.weight")) else 1.0
        floats = (values if len(size) > 1 else values + 1).astype(np.float32)
        kind = Kind.F32 if len(size) == 1 else embeddings if "embd" in name else matrices
        writer.add_tensor(name, gguf.quantize(floats, kind), raw_dtype=kind)
    if edit is not None:
        edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_shape(writer: gguf.GGUFWriter, shape: TinyShape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_license("cc0-1.0")


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges(list(MERGES))
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}")


def _tensors(shape: TinyShape) -> dict[str, tuple[int, ...]]:
    keys = shape.kv_heads * shape.head_dim
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(vocabulary()), shape.hidden)}
    for layer in range(shape.layers):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": (shape.hidden,),
            f"blk.{layer}.attn_q.weight": (shape.hidden, shape.hidden),
            f"blk.{layer}.attn_k.weight": (keys, shape.hidden),
            f"blk.{layer}.attn_v.weight": (keys, shape.hidden),
            f"blk.{layer}.attn_output.weight": (shape.hidden, shape.hidden),
            f"blk.{layer}.ffn_norm.weight": (shape.hidden,),
            f"blk.{layer}.ffn_gate.weight": (shape.intermediate, shape.hidden),
            f"blk.{layer}.ffn_up.weight": (shape.intermediate, shape.hidden),
            f"blk.{layer}.ffn_down.weight": (shape.hidden, shape.intermediate),
        }
    tensors["output_norm.weight"] = (shape.hidden,)
    return tensors if shape.tied else tensors | {"output.weight": tensors["token_embd.weight"]}
