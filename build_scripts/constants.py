"""Weights as OpenVINO constants, in the forms that the CPU plugin keeps compressed.

A grouped weight becomes: codes -> Convert f32 -> Subtract zero -> Multiply scale -> Reshape. Scales and zero points are
float32: half precision would round the zero point -m / d of a Q4_1 block, and the engine would no longer compute with the
checkpoint's numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops

from build_scripts.weights import Codes, Dense, Floats, Grouped, Weight

Node = Any
"""An OpenVINO node; the library ships no types."""


def integer(value: int | list[int]) -> Node:
    return ops.constant(np.array(value, dtype=np.int64))


def scalar(value: float) -> Node:
    return ops.constant(np.array(value, dtype=np.float32))


def floats(values: np.ndarray[Any, np.dtype[Any]]) -> Node:
    """A constant that shares the array's memory; of a read-only array (a mapped file) it takes a copy, as it must."""
    return ov.op.Constant(np.require(values, requirements=["C", "W"]), shared_memory=True)


def matrix(weight: Weight, name: str) -> Node:
    """The weight as float32 [rows, columns]."""
    node = _dense(weight) if isinstance(weight, Dense) else _decompress(_code_node(weight), weight)
    node.set_friendly_name(name)
    return node


def vector(weight: Weight, name: str) -> Node:
    node = floats(weight.to_float32())
    node.set_friendly_name(name)
    return node


def _dense(weight: Dense) -> Node:
    if weight.values.dtype == np.float32:
        return floats(weight.values)
    if weight.values.dtype == np.float16:
        return ops.convert(floats(weight.values), ov.Type.f32)
    tensor = ov.Tensor(ov.Type.bf16, ov.Shape(weight.shape))
    np.copyto(tensor.data.view(np.uint16), weight.values)
    return ops.convert(ov.op.Constant(tensor, shared_memory=True), ov.Type.f32)


def _code_node(weight: Grouped) -> Node:
    if weight.bits == 8:
        return floats(weight.codes)
    tensor = ov.Tensor(ov.Type.u4, ov.Shape(weight.codes.shape))
    np.copyto(tensor.data.reshape(-1), pack_nibbles(weight.codes))
    return ov.op.Constant(tensor, shared_memory=True)


def pack_nibbles(codes: Codes) -> Codes:
    """Two 4-bit codes a byte, the first in the low half, flat."""
    flat = codes.reshape(-1)
    packed: Codes = flat[0::2] | (flat[1::2] << 4)
    return packed


def _decompress(codes: Node, weight: Grouped) -> Node:
    values = ops.convert(codes, ov.Type.f32)
    if weight.zero is not None:
        values = ops.subtract(values, _zero(weight.zero))
    values = ops.multiply(values, floats(weight.scale))
    return ops.reshape(values, integer(list(weight.shape)), special_zero=False)


def _zero(zero: Floats) -> Node:
    """A format whose zero is the same everywhere (8 in Q4_0) needs it once."""
    first = zero.flat[0]
    return scalar(float(first)) if np.all(zero == first) else floats(zero)
