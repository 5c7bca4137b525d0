"""The graph's inputs, and what all layers make of them: rotary tables and attention masks, each built once."""

from __future__ import annotations

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from build_scripts.constants import Node, floats, integer, scalar
from build_scripts.decoder import Decoder
from build_scripts.rope import Rope

_HIDDEN = float(np.finfo(np.float32).min)
"""What a mask adds to a score that must not count."""


class GraphInputs:
    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.ids = _input("input_ids", ov.Type.i64, 2)
        self._attention_mask = _input("attention_mask", ov.Type.i64, 2)
        self._positions = _input("position_ids", ov.Type.i64, 2)
        self.beams = _input("beam_idx", ov.Type.i32, 1)
        self._rotations: dict[Rope, tuple[Node, Node]] = {}
        self._masks: dict[int | None, Node] = {}

    def parameters(self) -> list[Node]:
        return [self.ids, self._attention_mask, self._positions, self.beams]

    def rotation(self, rope: Rope) -> tuple[Node, Node]:
        """cos and sin, [batch, 1, tokens, rope.dims]."""
        if rope not in self._rotations:
            self._rotations[rope] = self._rotary_tables(rope)
        return self._rotations[rope]

    def mask(self, window: int | None) -> Node:
        """Additive, [batch, 1, new tokens, all tokens]: a token sees itself and what came before, never padding."""
        if window not in self._masks:
            self._masks[window] = self._causal_mask() if window is None else self._sliding_mask(window)
        return self._masks[window]

    def _rotary_tables(self, rope: Rope) -> tuple[Node, Node]:
        frequencies = rope.frequencies(self._decoder.static_context).astype(np.float32)
        positions = ops.unsqueeze(ops.convert(self._positions, ov.Type.f32), integer([1, 3]))
        angles = ops.multiply(positions, floats(frequencies.reshape(1, 1, 1, -1)))
        both = ops.concat([angles, angles], -1)
        cos, sin = ops.cos(both), ops.sin(both)
        if rope.stretch == 1:
            return cos, sin
        return ops.multiply(cos, scalar(rope.stretch)), ops.multiply(sin, scalar(rope.stretch))

    def _causal_mask(self) -> Node:
        visible = ops.logical_and(ops.unsqueeze(self._causal(), integer([0, 1])), self._present())
        return ops.select(visible, scalar(0.0), scalar(_HIDDEN))

    def _sliding_mask(self, window: int) -> Node:
        """As the causal mask, with the last ``window`` tokens only.

        The library turns a mask into a window of its paged attention where it finds this very chain of nodes (the one that
        transformers' export gives); the two ands with a constant are part of it, and change nothing.
        """
        rows, columns = self._rows_and_columns()
        recent = ops.greater(columns, ops.add(rows, integer(-window)))
        always = ops.constant(np.array(True))
        inner = ops.bitwise_and(ops.bitwise_and(self._causal(), recent), always)
        visible = ops.bitwise_and(ops.bitwise_and(always, inner), self._present())
        batch = ops.gather(ops.shape_of(self.ids), integer([0]), integer(0))
        new, total = (ops.unsqueeze(size, integer(0)) for size in self._new_and_total())
        shape = ops.concat([batch, integer([1]), new, total], 0)
        whole = ops.select(ops.broadcast(visible, shape), scalar(0.0), scalar(_HIDDEN))
        return ops.slice(whole, integer([0]), total, integer([1]), integer([3]))

    def _causal(self) -> Node:
        rows, columns = self._rows_and_columns()
        return ops.less_equal(columns, rows)

    def _rows_and_columns(self) -> tuple[Node, Node]:
        """Places of new tokens, [new, 1], and of all tokens, [1, all]."""
        new, total = self._new_and_total()
        columns = ops.range(integer(0), total, integer(1), ov.Type.i64)
        rows = ops.range(ops.subtract(total, new), total, integer(1), ov.Type.i64)
        return ops.unsqueeze(rows, integer(1)), ops.unsqueeze(columns, integer(0))

    def _new_and_total(self) -> tuple[Node, Node]:
        total = ops.gather(ops.shape_of(self._attention_mask), integer(1), integer(0))
        return ops.gather(ops.shape_of(self.ids), integer(1), integer(0)), total

    def _present(self) -> Node:
        """Where tokens are and not padding, [batch, 1, 1, all]."""
        return ops.unsqueeze(ops.convert(self._attention_mask, ov.Type.boolean), integer([1, 2]))


def _input(name: str, element: ov.Type, rank: int) -> Node:
    node = ops.parameter(ov.PartialShape([-1] * rank), element)
    # The transformation looks for friendly names in one place and tensor names in another.
    node.set_friendly_name(name)
    node.output(0).get_tensor().set_names({name})
    return node
