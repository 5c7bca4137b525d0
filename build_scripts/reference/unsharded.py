"""A checkpoint's forward pass, straight from its tensors: one sequence, no cache, one layer's weights in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from build_scripts.decoder import Decoder
from build_scripts.reference.arithmetic import Array, activate, attend, log_softmax, rms_norm, rotate, soft_cap
from build_scripts.weights import TensorSource


def log_probabilities(
    decoder: Decoder, source: TensorSource, tokens: Sequence[int], dtype: DTypeLike = np.float64
) -> Array:
    """[tokens, vocabulary]: of the token that follows each."""
    return log_softmax(_Forward(decoder, source, dtype).logits(tokens))


class _Forward:
    def __init__(self, decoder: Decoder, source: TensorSource, dtype: DTypeLike) -> None:
        self._decoder = decoder
        self._source = source
        self._dtype = dtype

    def logits(self, tokens: Sequence[int]) -> Array:
        decoder = self._decoder
        # Read again where it is the head: held in between, it would be the most that a build in four bits holds.
        hidden = self._tensor("token_embd.weight")[np.asarray(tokens)] * self._number(decoder.embedding_scale)
        for layer in range(decoder.layers):
            hidden = self._layer(hidden, layer)
        hidden = self._norm(hidden, "output_norm.weight")
        head = self._tensor("token_embd.weight" if decoder.tied_embeddings else "output.weight")
        return soft_cap(hidden @ head.T, decoder.logit_cap)

    def _layer(self, hidden: Array, layer: int) -> Array:
        prefix, post = f"blk.{layer}", self._decoder.post_norms
        attended = self._attention(self._norm(hidden, f"{prefix}.attn_norm.weight"), layer)
        hidden = hidden + (self._norm(attended, f"{prefix}.post_attention_norm.weight") if post else attended)
        fed = self._feed_forward(self._norm(hidden, f"{prefix}.ffn_norm.weight"), prefix)
        return hidden + (self._norm(fed, f"{prefix}.post_ffw_norm.weight") if post else fed)

    def _attention(self, hidden: Array, layer: int) -> Array:
        decoder, prefix = self._decoder, f"blk.{layer}"
        query = self._heads(hidden, f"{prefix}.attn_q", decoder.heads, rotated=True)
        key = self._heads(hidden, f"{prefix}.attn_k", decoder.kv_heads, rotated=True)
        value = self._heads(hidden, f"{prefix}.attn_v", decoder.kv_heads, rotated=False)
        rope = decoder.rope_of(layer)
        frequencies = rope.frequencies(len(hidden))
        mixed = attend(
            rotate(query, frequencies, rope.stretch),
            rotate(key, frequencies, rope.stretch),
            value,
            scale=decoder.attention_scale,
            cap=decoder.attention_cap,
            window=decoder.window(layer),
        )
        return self._linear(mixed.reshape(len(hidden), -1), f"{prefix}.attn_output", bias=decoder.output_bias)

    def _heads(self, hidden: Array, name: str, heads: int, *, rotated: bool) -> Array:
        decoder = self._decoder
        cut = self._linear(hidden, name, bias=decoder.qkv_bias).reshape(len(hidden), heads, decoder.head_dim)
        return self._norm(cut, f"{name}_norm.weight") if decoder.qk_norm and rotated else cut

    def _feed_forward(self, hidden: Array, prefix: str) -> Array:
        bias = self._decoder.feed_forward_bias
        gate = activate(self._linear(hidden, f"{prefix}.ffn_gate", bias=bias), self._decoder.activation)
        return self._linear(gate * self._linear(hidden, f"{prefix}.ffn_up", bias=bias), f"{prefix}.ffn_down", bias=bias)

    def _linear(self, values: Array, name: str, *, bias: bool) -> Array:
        product = values @ self._tensor(f"{name}.weight").T
        return product + self._tensor(f"{name}.bias") if bias else product

    def _norm(self, values: Array, name: str) -> Array:
        weight = self._tensor(name) + self._number(self._decoder.norm_shift)
        return rms_norm(values, weight, self._decoder.norm_epsilon)

    def _tensor(self, name: str) -> Array:
        return self._source.read_float32(name).astype(self._dtype, copy=False)

    def _number(self, value: float) -> Array:
        return np.asarray(value, dtype=self._dtype)
