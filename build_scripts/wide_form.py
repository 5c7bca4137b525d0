"""The second form of an engine's matrices: quantised ones dequantised to bfloat16, for steps of many tokens.

A step of one token waits for memory, and codes of four or eight bits are the least to wait for. A step of many tokens waits
for arithmetic, and codes must be widened to bfloat16 before each product. An engine that holds both runs each step in the
form that is faster (engines/openvino/session.py), at the price of two bytes a weight. Rounding the dequantised weights to
bfloat16 moves the results by no more than bfloat16 activations do anyway (docs/quantisation.md has both against float32).
"""

from __future__ import annotations

import math

from build_scripts.casting import to_bfloat16
from build_scripts.decoder import Decoder
from build_scripts.errors import UnsupportedError
from build_scripts.numerics import NumericsChoice, NumericsWish, WideForm
from build_scripts.weights import Dense, Floats, Grouped, TensorSource, Weight

GREATEST_BYTES = 1 << 30
"""A wide form above this is made only where it is asked for: speed at width is then bought with much memory."""
_FLOATS = ("F32", "F16", "BF16")


def settle_wide(
    wish: NumericsWish, choice: NumericsChoice, decoder: Decoder, formats: dict[str, str]
) -> WideForm | None:
    """Whether the engine gets a wide form; ``formats``: the checkpoint's storage format by tensor. Raises UnsupportedError where one
    is asked for that would be of no use."""
    if wish.wide_weights == "none":
        return None
    useless = _useless(choice, formats)
    if wish.wide_weights is not None and useless:
        raise UnsupportedError(f"--wide-weights {wish.wide_weights}: {useless}")
    if useless or (wish.wide_weights is None and wide_bytes(decoder) > GREATEST_BYTES):
        return None
    return "bf16"


def _useless(choice: NumericsChoice, formats: dict[str, str]) -> str | None:
    """Why a wide form would not serve."""
    if choice.activations != "bf16":
        return f"it needs activations bf16, these are {choice.activations}"
    quantised = choice.weights in ("int8", "int4") or (choice.weights == "gguf" and set(formats.values()) - {*_FLOATS})
    return None if quantised else f"weights {choice.weights} are not quantised here, one form serves all steps"


def wide_bytes(decoder: Decoder) -> int:
    """On disk, and as much again in memory."""
    return sum(math.prod(shape) * (2 if len(shape) > 1 else 4) for shape in decoder.tensors().values())


class WideSource:
    """A TensorSource that gives what another one stores in codes as bfloat16, and the rest as it is."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._source.shapes()

    def read(self, name: str) -> Weight:
        weight = self._source.read(name)
        return Dense(to_bfloat16(weight.to_float32())) if isinstance(weight, Grouped) else weight

    def read_float32(self, name: str) -> Floats:
        return self._source.read_float32(name)
