"""A decoder as a stateful OpenVINO graph.

The shape is the one that ``paged_attention_transformation`` recognises: per layer two state variables that grow by
concatenation, keys and values broadcast up to the query heads, then ScaledDotProductAttention. The same graph also runs
as it stands, one sequence a row, which is how the tests compare it with a NumPy forward.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino import opset6

from build_scripts.constants import Node, floats, integer, matrix, scalar, vector
from build_scripts.decoder import Decoder
from build_scripts.weights import TensorSource, Weight

RECIPE = "llama-1"
"""Changed whenever the same checkpoint would give other numbers; part of the engine's fingerprint."""

Progress = Callable[[str], None]
"""Called with the name of each tensor that went into the graph."""


def build_graph(decoder: Decoder, source: TensorSource, *, dequantise: bool, progress: Progress) -> ov.Model:
    """The model with all its weights in memory. ``dequantise`` makes every matrix float32."""
    return _GraphBuilder(decoder, source, dequantise, progress).model()


class _GraphBuilder:
    def __init__(self, decoder: Decoder, source: TensorSource, dequantise: bool, progress: Progress) -> None:
        self._decoder = decoder
        self._source = source
        self._dequantise = dequantise
        self._progress = progress
        self._sinks: list[Node] = []
        self._ids = _input("input_ids", ov.Type.i64, 2)
        self._attention_mask = _input("attention_mask", ov.Type.i64, 2)
        self._positions = _input("position_ids", ov.Type.i64, 2)
        self._beams = _input("beam_idx", ov.Type.i32, 1)

    def model(self) -> ov.Model:
        decoder = self._decoder
        embeddings = self._matrix("token_embd.weight")
        hidden = ops.gather(embeddings, self._ids, integer(0))
        self._rotation = self._rotary_tables()
        self._mask = self._causal_mask()
        for layer in range(decoder.layers):
            hidden = self._block(hidden, layer)
        hidden = self._norm(hidden, "output_norm.weight")
        head = embeddings if decoder.tied_embeddings else self._matrix("output.weight")
        logits = ops.matmul(hidden, head, False, True, name="logits")
        logits.output(0).get_tensor().set_names({"logits"})
        result = ops.result(logits)
        parameters = [self._ids, self._attention_mask, self._positions, self._beams]
        return ov.Model([result], self._sinks, parameters, decoder.family)

    # ------------------------------------------------------------------ weights

    def _read(self, name: str) -> Weight:
        from build_scripts.weights import Dense

        weight = Dense(self._source.read_float32(name)) if self._dequantise else self._source.read(name)
        self._progress(name)
        return weight

    def _matrix(self, name: str) -> Node:
        return matrix(self._read(name), name)

    # ------------------------------------------------------------------ shared inputs of the layers

    def _rotary_tables(self) -> tuple[Node, Node]:
        """cos and sin, [batch, 1, tokens, head_dim]."""
        exponents = np.arange(0, self._decoder.head_dim, 2, dtype=np.float32) / np.float32(self._decoder.head_dim)
        frequencies = (1.0 / (np.float32(self._decoder.rope_theta) ** exponents)).astype(np.float32)
        positions = ops.unsqueeze(ops.convert(self._positions, ov.Type.f32), integer([1, 3]))
        angles = ops.multiply(positions, floats(frequencies.reshape(1, 1, 1, -1)))
        both = ops.concat([angles, angles], -1)
        return ops.cos(both), ops.sin(both)

    def _causal_mask(self) -> Node:
        """Additive, [batch, 1, new tokens, all tokens]: a token sees itself and what came before, never padding."""
        total = ops.gather(ops.shape_of(self._attention_mask), integer(1), integer(0))
        new = ops.gather(ops.shape_of(self._ids), integer(1), integer(0))
        columns = ops.range(integer(0), total, integer(1), ov.Type.i64)
        rows = ops.range(ops.subtract(total, new), total, integer(1), ov.Type.i64)
        causal = ops.less_equal(ops.unsqueeze(columns, integer(0)), ops.unsqueeze(rows, integer(1)))
        present = ops.unsqueeze(ops.convert(self._attention_mask, ov.Type.boolean), integer([1, 2]))
        visible = ops.logical_and(ops.unsqueeze(causal, integer([0, 1])), present)
        return ops.select(visible, scalar(0.0), scalar(float(np.finfo(np.float32).min)))

    # ------------------------------------------------------------------ one layer

    def _block(self, hidden: Node, layer: int) -> Node:
        prefix = f"blk.{layer}"
        hidden = ops.add(hidden, self._attention(self._norm(hidden, f"{prefix}.attn_norm.weight"), layer))
        return ops.add(hidden, self._feed_forward(self._norm(hidden, f"{prefix}.ffn_norm.weight"), prefix))

    def _norm(self, hidden: Node, name: str) -> Node:
        squares = ops.power(hidden, scalar(2.0))
        mean = ops.reduce_mean(squares, integer([-1]), keep_dims=True)
        root = ops.sqrt(ops.add(mean, scalar(self._decoder.norm_epsilon)))
        return ops.multiply(vector(self._read(name), name), ops.multiply(hidden, ops.divide(scalar(1.0), root)))

    def _feed_forward(self, hidden: Node, prefix: str) -> Node:
        gate = ops.matmul(hidden, self._matrix(f"{prefix}.ffn_gate.weight"), False, True)
        up = ops.matmul(hidden, self._matrix(f"{prefix}.ffn_up.weight"), False, True)
        return ops.matmul(ops.multiply(ops.swish(gate), up), self._matrix(f"{prefix}.ffn_down.weight"), False, True)

    def _attention(self, hidden: Node, layer: int) -> Node:
        decoder, prefix = self._decoder, f"blk.{layer}"
        query = self._split(hidden, self._matrix(f"{prefix}.attn_q.weight"), decoder.heads)
        key = self._split(hidden, self._matrix(f"{prefix}.attn_k.weight"), decoder.kv_heads)
        value = self._split(hidden, self._matrix(f"{prefix}.attn_v.weight"), decoder.kv_heads)
        keys = self._repeat(self._remember(self._rotate(key), layer, "key"))
        values = self._repeat(self._remember(value, layer, "value"))
        scale = scalar(decoder.head_dim**-0.5)
        mixed = ops.scaled_dot_product_attention(self._rotate(query), keys, values, self._mask, scale, causal=False)
        merged = ops.reshape(
            ops.transpose(mixed, integer([0, 2, 1, 3])),
            integer([0, 0, decoder.heads * decoder.head_dim]),
            special_zero=True,
        )
        return ops.matmul(merged, self._matrix(f"{prefix}.attn_output.weight"), False, True)

    def _split(self, hidden: Node, weight: Node, heads: int) -> Node:
        """Project and cut into heads: [batch, heads, tokens, head_dim]."""
        projected = ops.matmul(hidden, weight, False, True)
        cut = ops.reshape(projected, integer([0, 0, heads, self._decoder.head_dim]), special_zero=True)
        return ops.transpose(cut, integer([0, 2, 1, 3]))

    def _rotate(self, heads: Node) -> Node:
        """Rotary position embedding, half-split form (Su et al. 2021, as the reference implementations lay it out)."""
        cos, sin = self._rotation
        half = self._decoder.head_dim // 2
        first = ops.slice(heads, integer([0]), integer([half]), integer([1]), integer([3]))
        second = ops.slice(heads, integer([half]), integer([2 * half]), integer([1]), integer([3]))
        turned = ops.concat([ops.multiply(second, scalar(-1.0)), first], -1)
        return ops.add(ops.multiply(heads, cos), ops.multiply(turned, sin))

    def _remember(self, new: Node, layer: int, kind: str) -> Node:
        """Append to the layer's state; the whole of it, [batch, kv_heads, all tokens, head_dim]."""
        decoder = self._decoder
        variable = f"past_key_values.{layer}.{kind}present.{layer}.{kind}"
        batch = ops.gather(ops.shape_of(self._ids), integer([0]), integer(0))
        empty = ops.concat([batch, integer([decoder.kv_heads]), integer([0]), integer([decoder.head_dim])], 0)
        start = ops.broadcast(scalar(0.0), empty)
        shape = ov.PartialShape([-1, decoder.kv_heads, -1, decoder.head_dim])
        past = opset6.read_value(start, variable, ov.Type.f32, shape)
        whole = ops.concat([ops.gather(past, self._beams, integer(0)), new], 2)
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


def _input(name: str, element: ov.Type, rank: int) -> Node:
    node = ops.parameter(ov.PartialShape([-1] * rank), element)
    # The transformation looks for friendly names in one place and tensor names in another.
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})
    return node
