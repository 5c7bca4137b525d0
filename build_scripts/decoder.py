"""What a decoder-only transformer is, in numbers: the one description that every target builds from.

Whatever file a model comes in, it is described here once, and its tensors go by one set of names (GGUF's, the shortest in
use). gguf_description and hf_description read the two kinds of file into it, and refuse by name what it cannot express.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.rope import Rope

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """RMS norms, rotary positions in half-split order, grouped-query attention, gated feed-forward."""

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    """Longest sequence that the checkpoint allows, in tokens."""
    norm_epsilon: float
    tied_embeddings: bool
    rope: Rope
    local_rope: Rope | None = None
    """Rotation of the layers that have a window, where it differs (Gemma 3)."""
    windows: tuple[int | None, ...] = ()
    """By layer: how many last tokens, itself among them, a token sees; None = all. Empty = all layers see all."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    qk_norm: bool = False
    """RMS norm of each query and key head before rotation."""
    post_norms: bool = False
    """A second norm behind attention and behind the feed-forward, before each is added (Gemma 2 and 3)."""
    norm_shift: float = 0.0
    """Added to every stored norm weight: 1 where the file keeps the distance from one (Gemma in Hugging Face's form)."""
    embedding_scale: float = 1.0
    attention_scale: float
    attention_cap: float | None = None
    """cap * tanh(score / cap) before the softmax."""
    logit_cap: float | None = None

    @property
    def rope_theta(self) -> float:
        return self.rope.theta

    @property
    def static_context(self) -> int:
        """Longest sequence that an engine which caches keys serves exactly (see rope)."""
        return min(self.max_context, self.rope.static_context or self.max_context)

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def rope_of(self, layer: int) -> Rope:
        return self.local_rope if self.local_rope and self.window(layer) is not None else self.rope

    def parameters(self) -> int:
        """Weights that are stored; tied embeddings count once."""
        return sum(math.prod(shape) for shape in self.tensors().values())

    def tensors(self) -> dict[str, Shape]:
        """Every tensor of the model under its GGUF name, with its shape, rows first."""
        shapes: dict[str, Shape] = {"token_embd.weight": (self.vocab_size, self.hidden)}
        for layer in range(self.layers):
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in self.layer_tensors().items()}
        shapes["output_norm.weight"] = (self.hidden,)
        if not self.tied_embeddings:
            shapes["output.weight"] = (self.vocab_size, self.hidden)
        return shapes

    def layer_tensors(self) -> dict[str, Shape]:
        """The tensors of one layer, without the layer's prefix."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, Shape] = {
            "attn_norm.weight": (self.hidden,),
            "attn_q.weight": (queries, self.hidden),
            "attn_k.weight": (keys, self.hidden),
            "attn_v.weight": (keys, self.hidden),
            "attn_output.weight": (self.hidden, queries),
            "ffn_norm.weight": (self.hidden,),
            "ffn_gate.weight": (self.intermediate, self.hidden),
            "ffn_up.weight": (self.intermediate, self.hidden),
            "ffn_down.weight": (self.hidden, self.intermediate),
        }
        if self.qkv_bias:
            shapes |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
        if self.output_bias:
            shapes["attn_output.bias"] = (self.hidden,)
        if self.feed_forward_bias:
            wide = (self.intermediate,)
            shapes |= {"ffn_gate.bias": wide, "ffn_up.bias": wide, "ffn_down.bias": (self.hidden,)}
        if self.qk_norm:
            shapes |= {"attn_q_norm.weight": (self.head_dim,), "attn_k_norm.weight": (self.head_dim,)}
        if self.post_norms:
            shapes |= {"post_attention_norm.weight": (self.hidden,), "post_ffw_norm.weight": (self.hidden,)}
        return shapes

    def kv_values_per_token(self, layers: int | None = None) -> int:
        """Numbers that one token leaves in the cache, keys and values of ``layers`` layers (all)."""
        return 2 * (self.layers if layers is None else layers) * self.kv_heads * self.head_dim


def check_arithmetic(decoder: Decoder) -> None:
    """Raises CheckpointError for sizes that no model can have, UnsupportedError for one that this description lacks."""
    for name in ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab_size", "max_context"):
        value = getattr(decoder, name)
        if value < 1:
            raise CheckpointError(f"{name} must be at least 1, the file has {value}")
    if decoder.heads % decoder.kv_heads:
        raise CheckpointError(f"{decoder.heads} query heads cannot share {decoder.kv_heads} key heads evenly")
    for rope in (decoder.rope, decoder.local_rope or decoder.rope):
        if rope.dims % 2 or not 0 < rope.dims <= decoder.head_dim:
            raise CheckpointError(
                f"rotary positions need an even size up to the head's {decoder.head_dim}, the file has {rope.dims}"
            )
    if decoder.windows and len(decoder.windows) != decoder.layers:
        raise CheckpointError(f"windows are given for {len(decoder.windows)} layers of {decoder.layers}")


def check_tensors(found: dict[str, Shape], decoder: Decoder) -> None:
    """Raises CheckpointError for a missing or misshapen tensor, UnsupportedError for one that has no place."""
    wanted = decoder.tensors()
    if missing := sorted(wanted.keys() - found.keys()):
        raise CheckpointError(f"the checkpoint lacks tensor {missing[0]} ({len(missing)} missing)")
    if extra := sorted(found.keys() - wanted.keys()):
        raise UnsupportedError(f"tensor {extra[0]} has no place in this recipe ({len(extra)} such)")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise CheckpointError(f"tensor {name} should have shape {shape}, the checkpoint has {found[name]}")
