"""Which tensors a rank file holds, and of which tensors of the description each is made.

A target is one or more parts, each cut for its shard, one below the other. The naming has one trap: TensorRT-LLM's gated
feed-forward calls the activated projection ``fc`` and the other ``gate``, so fc is Hugging Face's gate_proj and gate its
up_proj. In the fused form (Phi3ForCausalLM's) the activated half comes second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from build_scripts.decoder import Decoder, Shape
from build_scripts.trtllm.layout import Layout, kv_head_share, padded_vocabulary


class Split(Enum):
    WHOLE = auto()
    """Every shard has it all: norms, and the biases added after the sum over shards."""
    ROWS = auto()
    KEY_HEADS = auto()
    """Rows by key head, replicated where shards outnumber heads."""
    COLUMNS = auto()
    VOCABULARY = auto()
    """Rows, after padding with zeros to a multiple of tp."""


@dataclass(frozen=True)
class Part:
    source: str
    """Name in the description."""
    split: Split


@dataclass(frozen=True)
class Target:
    name: str
    parts: tuple[Part, ...]
    shift: float = 0.0
    """Added to every value: Gemma's norms are stored whole here."""


@dataclass(frozen=True)
class Form:
    """Where architectures of TensorRT-LLM differ in their tensors."""

    fused_feed_forward: bool = False
    sandwich_norms: bool = False
    parallel_embedding: bool = False
    """The embedding is split over the vocabulary instead of being held whole by every shard."""
    shared_embedding: bool = False
    """The head is the embedding: it is not stored a second time."""


def stage_targets(decoder: Decoder, layout: Layout, form: Form, stage: int) -> Iterator[Target]:
    """What every shard of a stage holds, in the order in which it is made."""
    if stage == 0:
        split = Split.VOCABULARY if form.parallel_embedding else Split.WHOLE
        yield Target("transformer.vocab_embedding.weight", (Part("token_embd.weight", split),))
    for local, layer in enumerate(layout.stage_layers(decoder.layers, stage)):
        yield from _layer(decoder, form, layer, f"transformer.layers.{local}")
    if stage == layout.pp - 1:
        norm = Part("output_norm.weight", Split.WHOLE)
        yield Target("transformer.ln_f.weight", (norm,), decoder.norm_shift)
        if not form.shared_embedding:
            head = "token_embd.weight" if decoder.tied_embeddings else "output.weight"
            yield Target("lm_head.weight", (Part(head, Split.VOCABULARY),))


def _layer(decoder: Decoder, form: Form, layer: int, name: str) -> Iterator[Target]:
    """``name`` counts layers from the start of their stage, as rank files do."""
    source = f"blk.{layer}"

    def norm(target: str, part: str) -> Target:
        return Target(f"{name}.{target}", (Part(f"{source}.{part}", Split.WHOLE),), decoder.norm_shift)

    def linear(target: str, *parts: tuple[str, Split], bias: bool, bias_split: Split | None = None) -> Iterator[Target]:
        for kind in ("weight", "bias") if bias else ("weight",):
            chosen = [
                Part(f"{source}.{part}.{kind}", (bias_split or split) if kind == "bias" else split)
                for part, split in parts
            ]
            yield Target(f"{name}.{target}.{kind}", tuple(chosen))

    yield norm("input_layernorm.weight", "attn_norm.weight")
    qkv = (("attn_q", Split.ROWS), ("attn_k", Split.KEY_HEADS), ("attn_v", Split.KEY_HEADS))
    yield from linear("attention.qkv", *qkv, bias=decoder.qkv_bias)
    if decoder.qk_norm:
        yield norm("attention.q_layernorm.weight", "attn_q_norm.weight")
        yield norm("attention.k_layernorm.weight", "attn_k_norm.weight")
    dense = ("attn_output", Split.COLUMNS)
    yield from linear("attention.dense", dense, bias=decoder.output_bias, bias_split=Split.WHOLE)
    if form.sandwich_norms:
        yield norm("post_layernorm.weight", "post_attention_norm.weight")
        yield norm("pre_feedforward_layernorm.weight", "ffn_norm.weight")
        yield norm("post_feedforward_layernorm.weight", "post_ffw_norm.weight")
    else:
        yield norm("post_layernorm.weight", "ffn_norm.weight")
    wide, activated = ("ffn_up", Split.ROWS), ("ffn_gate", Split.ROWS)
    if form.fused_feed_forward:
        yield from linear("mlp.fc", wide, activated, bias=decoder.feed_forward_bias)
    else:
        yield from linear("mlp.fc", activated, bias=decoder.feed_forward_bias)
        yield from linear("mlp.gate", wide, bias=decoder.feed_forward_bias)
    down = ("ffn_down", Split.COLUMNS)
    yield from linear("mlp.proj", down, bias=decoder.feed_forward_bias, bias_split=Split.WHOLE)


def cut(values: NDArray[Any], split: Split, decoder: Decoder, layout: Layout, shard: int) -> NDArray[Any]:
    """A shard's share of a tensor, a view wherever it can be one. Works on any row or column unit that divides evenly."""
    if split is Split.WHOLE:
        return values
    if split is Split.KEY_HEADS:
        share = kv_head_share(decoder.kv_heads, layout.tp, shard)
        each = values.shape[0] // decoder.kv_heads
        return values[share.start * each : share.stop * each]
    if split is Split.VOCABULARY:
        return _vocabulary_share(values, layout.tp, shard)
    axis = 0 if split is Split.ROWS else 1
    each = values.shape[axis] // layout.tp
    chosen = slice(shard * each, (shard + 1) * each)
    return values[chosen] if axis == 0 else values[:, chosen]


def _vocabulary_share(values: NDArray[Any], tp: int, shard: int) -> NDArray[Any]:
    each = padded_vocabulary(values.shape[0], tp) // tp
    share = values[shard * each : (shard + 1) * each]
    if len(share) == each:
        return share
    return np.concatenate([share, np.zeros((each - len(share), *values.shape[1:]), values.dtype)])


def cut_shape(shape: Shape, split: Split, decoder: Decoder, layout: Layout) -> Shape:
    """The shape that ``cut`` gives, the same for every shard."""
    if split is Split.WHOLE:
        return shape
    if split is Split.KEY_HEADS:
        share = len(kv_head_share(decoder.kv_heads, layout.tp, 0))
        return (shape[0] // decoder.kv_heads * share, *shape[1:])
    if split is Split.VOCABULARY:
        return (padded_vocabulary(shape[0], layout.tp) // layout.tp, *shape[1:])
    if split is Split.ROWS:
        return (shape[0] // layout.tp, *shape[1:])
    return (shape[0], shape[1] // layout.tp)
