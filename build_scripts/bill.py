"""The memory bill: what an engine takes on disk and in memory, and what its build needs, known before either exists.

Weights and key-value bytes follow from the shapes. What the library adds was measured (openvino 2026.4.1): a loaded model
holds its weights packed for its kernels, grouped ones and half floats as they are stored and float32 in the precision of the
activations, beside the mapped file, and about 220 MB of code, kernels and graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from build_scripts import build_memory
from build_scripts.decoder import Decoder, Shape
from build_scripts.numerics import NumericsChoice, WeightForm
from build_scripts.weight_forms import INT4_GROUP, WIDE
from build_scripts.wide_form import wide_bytes
from engines.openvino.memory_need import ONE_TOKEN_BYTES, RUNTIME_BYTES

GRAPH_BYTES = 12_000_000
"""model.xml and tokenizer.json, rounded up."""
BLOCK_SIZE = 32
"""Tokens in a block of the paged-attention kernel."""
KV_PRECISIONS = ("u8", "f16", "bf16", "f32")
DEFAULT_KV_BUDGET = 1 << 30
"""What a runner takes unless it is told otherwise."""
STEP_TOKENS = 2048
STEP_ROWS = 256
_DENSE_BITS = {"F32": 32, "F16": 16, "BF16": 16}
_FORMED = {"f32": "F32", "f16": "F16", "bf16": "BF16", "int8": "I8", "int4": "U4"}
"""The format in which a form stores a matrix: I8 has one scale a row, U4 a scale and a zero for each 64 values."""
_GROUPED_BITS = {
    "Q4_0": (4, 32, 32),
    "Q4_1": (4, 64, 32),
    "Q8_0": (8, 32, 32),
    "Q4_K": (4, 64, 32),
    "Q5_K": (8, 64, 32),
    "Q6_K": (8, 32, 16),
}
"""By format: bits of a code, bits of a group's scale and, where groups differ in it, zero (float32 each), values in a group."""


class KvShape(Protocol):
    """What decides the size of keys and values: a Decoder, or a manifest's ModelShape."""

    @property
    def layers(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


@dataclass(frozen=True)
class Bill:
    """Bytes, unless a name says otherwise."""

    weights: int
    """On disk, in all forms."""
    disk: int
    """The whole engine directory."""
    build_memory: int
    """Peak of the build, verification included."""
    loaded: int
    """Resident size of a loaded engine before any key-value memory."""
    workspace: int
    """Activations and logits of one full step."""
    kv_per_token: dict[str, int]
    """By precision."""
    kv_precision: str
    """The one chosen."""
    max_context: int

    def sequences(self, length: int, budget: int, precision: str | None = None) -> int:
        """How many sequences of ``length`` tokens have room in ``budget`` bytes of keys and values; None = as chosen."""
        blocks = budget // (self.kv_per_token[precision or self.kv_precision] * BLOCK_SIZE)
        return blocks // math.ceil(length / BLOCK_SIZE)


def draw_up(decoder: Decoder, formats: dict[str, str], choice: NumericsChoice, kind: str) -> Bill:
    """``formats``: the storage format of each tensor in the checkpoint; ``kind``: the checkpoint's."""
    shapes = decoder.tensors()
    stored = {name: _format(name, shape, formats[name], choice.weights) for name, shape in shapes.items()}
    wide = 0 if choice.wide_weights is None else wide_bytes(decoder)
    weights = sum(stored_bytes(shape, stored[name]) for name, shape in shapes.items()) + wide
    packed = sum(
        held_bytes(shape, stored[name], choice.activations)
        for name, shape in shapes.items()
        if name not in build_memory.never_packed(decoder)
    )
    if choice.wide_weights is not None:
        packed = wide + 2 * packed  # the codes once more, for steps of one token (engines/openvino/session.py)
    constants = sum(_constant_bytes(shape, stored[name]) for name, shape in shapes.items())
    per_token = {precision: kv_bytes_per_token(decoder, precision) for precision in KV_PRECISIONS}
    probed = verification_blocks(decoder.static_context) * BLOCK_SIZE * per_token[choice.kv_cache]
    proving = build_memory.proving(decoder, weights, packed, constants, choice.activations) + probed
    proving += 2 * build_memory.FURTHER_FORM_BYTES if choice.wide_weights else 0
    peak = max(build_memory.writing(decoder, weights), proving)
    return Bill(
        weights=weights,
        disk=weights + GRAPH_BYTES,
        build_memory=peak + build_memory.checkpoint_bytes(decoder, formats, kind),
        loaded=weights + packed + RUNTIME_BYTES + (ONE_TOKEN_BYTES if choice.wide_weights else 0),
        workspace=_workspace(decoder),
        kv_per_token=per_token,
        kv_precision=choice.kv_cache,
        max_context=decoder.static_context,
    )


def _format(name: str, shape: Shape, stored: str, form: WeightForm) -> str:
    """How an engine stores a tensor of the checkpoint."""
    if form == "gguf":
        return stored
    if len(shape) < 2:
        return "F32"
    return "I8" if form == "int4" and name in WIDE else _FORMED[form]


def stored_bytes(shape: Shape, kind: str) -> int:
    """Bytes of a tensor in an engine that keeps the format; what is not kept becomes float32."""
    count = math.prod(shape)
    if kind == "I8":
        return count + 4 * shape[0]
    if kind == "U4":
        return count // 2 + 8 * count // INT4_GROUP
    if kind in _GROUPED_BITS:
        code, constants, group = _GROUPED_BITS[kind]
        return count * code // 8 + count // group * constants // 8
    return count * _DENSE_BITS.get(kind, 32) // 8


def _constant_bytes(shape: Shape, kind: str) -> int:
    """Scales and zeros of a tensor's groups."""
    if kind == "U4":
        return 8 * math.prod(shape) // INT4_GROUP
    if kind not in _GROUPED_BITS:
        return 0
    _, constants, group = _GROUPED_BITS[kind]
    return math.prod(shape) // group * constants // 8


def held_bytes(shape: Shape, kind: str, activations: str) -> int:
    """Bytes that a loaded engine holds of a tensor, beside the mapped file: as stored, or narrower if the activations are."""
    return min(stored_bytes(shape, kind), math.prod(shape) * (2 if activations == "bf16" else 4))


def kv_bytes_per_token(shape: KvShape, precision: str) -> int:
    """Keys and values of all layers. u8 keeps a scale and a zero: of keys by channel and block, of values by token."""
    heads, size = shape.layers * shape.kv_heads, shape.head_dim
    if precision == "u8":
        constants = 8
        keys = heads * size * (BLOCK_SIZE + constants) // BLOCK_SIZE
        return keys + heads * (size + constants)
    return 2 * heads * size * (4 if precision == "f32" else 2)


def verification_blocks(max_context: int) -> int:
    """Blocks that the proof asks of the runner: the step profile's context and a block for each of the 32 sequences behind it;
    verification's eight texts fill fewer. None to spare: on huge pages, a block that is written takes memory for its neighbours."""
    return math.ceil(min(max_context, 1024) / BLOCK_SIZE) + 32


def _workspace(decoder: Decoder) -> int:
    return 4 * (STEP_TOKENS * build_memory.floats_per_token(decoder) + STEP_ROWS * decoder.vocab_size)
