"""A decoder as a stateful OpenVINO graph.

The shape is the one that ``paged_attention_transformation`` recognises: per layer two state variables that grow by
concatenation, keys and values broadcast up to the query heads, then ScaledDotProductAttention. The same graph also runs
as it stands, one sequence a row, which is how the tests compare it with a NumPy forward.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino import opset6

from build_scripts.constants import Node, integer, matrix, scalar, vector
from build_scripts.decoder import Decoder
from build_scripts.errors import UnsupportedError
from build_scripts.graph_inputs import GraphInputs
from build_scripts.weights import Dense, TensorSource, Weight, stacked

RECIPE = "decoder-1"
"""Changed whenever the same checkpoint would give other numbers; part of the engine's fingerprint."""

Progress = Callable[[str], None]
"""Called with the name of each tensor that went into the graph."""


def build_graph(decoder: Decoder, source: TensorSource, *, dequantise: bool, progress: Progress) -> ov.Model:
    """The model with all its weights in memory. ``dequantise`` makes every matrix float32.

    Raises UnsupportedError for a feature that paged attention does not have.
    """
    check_embeddable(decoder)
    model = _GraphBuilder(decoder, source, dequantise, progress).model()
    _name_by_order(model)
    return model


def _name_by_order(model: ov.Model) -> None:
    """The library numbers unnamed nodes through the life of the process; counted anew, equal input gives equal bytes."""
    for index, node in enumerate(model.get_ordered_ops()):
        if re.fullmatch(r"[A-Za-z]+_\d+", node.get_friendly_name()):
            node.set_friendly_name(f"{node.get_type_name()}_{index}")


def check_embeddable(decoder: Decoder) -> None:
    """Raises UnsupportedError, before any weight is read, naming what this engine cannot compute."""
    if decoder.attention_cap is not None:
        raise UnsupportedError(
            f"attn_logit_softcapping {decoder.attention_cap} is not implemented on the embedded engine: its paged attention "
            "has no cap on scores (TensorRT-LLM's has: --engine trtllm)"
        )


class _GraphBuilder:
    def __init__(self, decoder: Decoder, source: TensorSource, dequantise: bool, progress: Progress) -> None:
        self._decoder = decoder
        self._source = source
        self._dequantise = dequantise
        self._progress = progress
        self._sinks: list[Node] = []
        self._inputs = GraphInputs(decoder)

    def model(self) -> ov.Model:
        decoder = self._decoder
        embeddings = self._matrix("token_embd.weight")
        hidden = ops.gather(embeddings, self._inputs.ids, integer(0))
        if decoder.embedding_scale != 1:
            hidden = ops.multiply(hidden, scalar(decoder.embedding_scale))
        for layer in range(decoder.layers):
            hidden = self._block(hidden, layer)
        hidden = self._norm(hidden, "output_norm.weight")
        head = embeddings if decoder.tied_embeddings else self._matrix("output.weight")
        logits = _soft_cap(ops.matmul(hidden, head, False, True), decoder.logit_cap)
        logits.set_friendly_name("logits")
        logits.output(0).get_tensor().set_names({"logits"})
        return ov.Model([ops.result(logits)], self._sinks, self._inputs.parameters(), decoder.family)

    # ------------------------------------------------------------------ weights

    def _read(self, name: str) -> Weight:
        weight = Dense(self._source.read_float32(name)) if self._dequantise else self._source.read(name)
        self._progress(name)
        return weight

    def _matrix(self, name: str) -> Node:
        return matrix(self._read(name), name)

    def _linear(self, hidden: Node, name: str, *, bias: bool) -> Node:
        weight = self._read(f"{name}.weight")
        return _product(hidden, name, weight, self._read(f"{name}.bias") if bias else None)

    def _norm(self, hidden: Node, name: str) -> Node:
        weight = self._read(name).to_float32() + np.float32(self._decoder.norm_shift)
        squares = ops.power(hidden, scalar(2.0))
        mean = ops.reduce_mean(squares, integer([-1]), keep_dims=True)
        root = ops.sqrt(ops.add(mean, scalar(self._decoder.norm_epsilon)))
        return ops.multiply(vector(Dense(weight), name), ops.multiply(hidden, ops.divide(scalar(1.0), root)))

    # ------------------------------------------------------------------ one layer

    def _block(self, hidden: Node, layer: int) -> Node:
        prefix, post = f"blk.{layer}", self._decoder.post_norms
        attended = self._attention(self._norm(hidden, f"{prefix}.attn_norm.weight"), layer)
        hidden = ops.add(hidden, self._norm(attended, f"{prefix}.post_attention_norm.weight") if post else attended)
        fed = self._feed_forward(self._norm(hidden, f"{prefix}.ffn_norm.weight"), prefix)
        return ops.add(hidden, self._norm(fed, f"{prefix}.post_ffw_norm.weight") if post else fed)

    def _feed_forward(self, hidden: Node, prefix: str) -> Node:
        decoder = self._decoder
        gate = self._linear(hidden, f"{prefix}.ffn_gate", bias=decoder.feed_forward_bias)
        active = ops.swish(gate) if decoder.activation == "silu" else ops.gelu(gate, "tanh")
        up = self._linear(hidden, f"{prefix}.ffn_up", bias=decoder.feed_forward_bias)
        return self._linear(ops.multiply(active, up), f"{prefix}.ffn_down", bias=decoder.feed_forward_bias)

    def _attention(self, hidden: Node, layer: int) -> Node:
        decoder, prefix = self._decoder, f"blk.{layer}"
        query, key, value = self._projections(hidden, prefix)
        query = self._heads(query, f"{prefix}.attn_q", decoder.heads)
        key = self._heads(key, f"{prefix}.attn_k", decoder.kv_heads)
        value = self._cut(value, decoder.kv_heads)
        keys = self._repeat(self._remember(self._rotate(key, layer), layer, "key"))
        values = self._repeat(self._remember(value, layer, "value"))
        mixed = ops.scaled_dot_product_attention(
            self._rotate(query, layer),
            keys,
            values,
            self._inputs.mask(decoder.window(layer)),
            scalar(decoder.attention_scale),
            causal=False,
        )
        width = integer([0, 0, decoder.heads * decoder.head_dim])
        merged = ops.reshape(ops.transpose(mixed, integer([0, 2, 1, 3])), width, special_zero=True)
        return self._linear(merged, f"{prefix}.attn_output", bias=decoder.output_bias)

    def _projections(self, hidden: Node, prefix: str) -> Sequence[Node]:
        """Queries, keys and values, each [batch, tokens, width]. One product and a split take less of a short step than three products
        (docs/building.md), and each number is the same sum; where a file keeps the three in different formats they stay apart."""
        names = [f"{prefix}.attn_{kind}" for kind in "qkv"]
        weights = [self._read(f"{name}.weight") for name in names]
        biases = [self._read(f"{name}.bias") for name in names] if self._decoder.qkv_bias else []
        weight, bias = stacked(weights), stacked([Dense(bias.to_float32()) for bias in biases])
        if weight is None:
            return [_product(hidden, *of) for of in zip_longest(names, weights, biases)]
        product = _product(hidden, f"{prefix}.attn_qkv", weight, bias)
        split = ops.variadic_split(product, integer(-1), integer([part.shape[0] for part in weights]))
        return list(split.outputs())

    def _heads(self, projected: Node, name: str, heads: int) -> Node:
        cut = self._cut(projected, heads)
        return self._norm(cut, f"{name}_norm.weight") if self._decoder.qk_norm else cut

    def _cut(self, projected: Node, heads: int) -> Node:
        """[batch, heads, tokens, head_dim]"""
        cut = ops.reshape(projected, integer([0, 0, heads, self._decoder.head_dim]), special_zero=True)
        return ops.transpose(cut, integer([0, 2, 1, 3]))

    def _rotate(self, heads: Node, layer: int) -> Node:
        """Rotary position embedding, half-split form (Su et al. 2021, as the reference implementations lay it out)."""
        rope, size = self._decoder.rope_of(layer), self._decoder.head_dim
        cos, sin = self._inputs.rotation(rope)
        half = rope.dims // 2
        turning = heads if rope.dims == size else _part(heads, 0, rope.dims)
        flipped = ops.concat([ops.multiply(_part(turning, half, rope.dims), scalar(-1.0)), _part(turning, 0, half)], -1)
        turned = ops.add(ops.multiply(turning, cos), ops.multiply(flipped, sin))
        return turned if rope.dims == size else ops.concat([turned, _part(heads, rope.dims, size)], -1)

    def _remember(self, new: Node, layer: int, kind: str) -> Node:
        """Append to the layer's state; the whole of it, [batch, kv_heads, all tokens, head_dim]."""
        decoder = self._decoder
        variable = f"past_key_values.{layer}.{kind}present.{layer}.{kind}"
        batch = ops.gather(ops.shape_of(self._inputs.ids), integer([0]), integer(0))
        empty = ops.concat([batch, integer([decoder.kv_heads]), integer([0]), integer([decoder.head_dim])], 0)
        start = ops.broadcast(scalar(0.0), empty)
        shape = ov.PartialShape([-1, decoder.kv_heads, -1, decoder.head_dim])
        past = opset6.read_value(start, variable, ov.Type.f32, shape)
        whole = ops.concat([ops.gather(past, self._inputs.beams, integer(0)), new], 2)
        self._sinks.append(opset6.assign(whole, variable))
        return whole

    def _repeat(self, heads: Node) -> Node:
        """Grouped-query attention: each key head serves a run of query heads."""
        decoder = self._decoder
        if decoder.heads == decoder.kv_heads:
            return heads
        group = decoder.heads // decoder.kv_heads
        spread = ops.broadcast(
            ops.unsqueeze(heads, integer(2)), integer([1, 1, group, 1, 1]), broadcast_spec="BIDIRECTIONAL"
        )
        return ops.reshape(spread, integer([0, decoder.heads, -1, decoder.head_dim]), special_zero=True)


def _product(hidden: Node, name: str, weight: Weight, bias: Weight | None) -> Node:
    product = ops.matmul(hidden, matrix(weight, f"{name}.weight"), False, True)
    return product if bias is None else ops.add(product, vector(bias, f"{name}.bias"))


def _part(heads: Node, start: int, stop: int) -> Node:
    return ops.slice(heads, integer([start]), integer([stop]), integer([1]), integer([3]))


def _soft_cap(logits: Node, cap: float | None) -> Node:
    if cap is None:
        return logits
    return ops.multiply(ops.tanh(ops.divide(logits, scalar(cap))), scalar(cap))
