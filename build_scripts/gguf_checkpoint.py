"""A GGUF file: metadata, and tensors one by one.

Formats: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and the block layouts of ggml-common.h.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, dequantize
from numpy.typing import NDArray

from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.finite import refuse_not_finite
from build_scripts.gguf_header import require_whole_header
from build_scripts.quantised_blocks import DECODERS
from build_scripts.weights import Dense, Floats, Weight

T = TypeVar("T")

_DENSE = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
    GGMLQuantizationType.BF16: np.uint16,
}


class GgufCheckpoint:
    """Read-only and memory-mapped: opening costs the metadata, reading a tensor costs that tensor."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError where the file is no GGUF, or ends before its last tensor."""
        try:
            require_whole_header(path)
            self._reader: Any = GGUFReader(path, "r")
            self._tensors: dict[str, Any] = {tensor.name: tensor for tensor in self._reader.tensors}
        except OSError as error:
            raise CheckpointError(f"cannot read {path.name}: {error.strerror or error}") from error
        except (ValueError, IndexError, KeyError, OverflowError, TypeError, UnicodeDecodeError) as error:
            # The reader has no error type of its own: whatever its parsing trips over means a broken file.
            raise CheckpointError(f"{path.name} is not a whole GGUF file ({error})") from error
        self.path = path
        self._interleaved_heads = self._count_interleaved_heads()

    def forget_metadata(self) -> None:
        """When all of it has been read; tensors stay. The library keeps two arrays for each text of a vocabulary: 3.4 kB."""
        self._reader = None

    def keys(self) -> list[str]:
        return [key for key in self._reader.fields if not key.startswith("GGUF.")]

    def get(self, key: str, kind: type[T]) -> T | None:
        """A metadata value, None where absent. Raises CheckpointError where it is of another type."""
        field = self._reader.fields.get(key)
        if field is None:
            return None
        try:
            value = field.contents()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{key} holds text that is not UTF-8 ({error.reason})") from error
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(
                f"{key} should be a {kind.__name__}, the file has {type(value).__name__} {value!r:.80}"
            )
        return value

    def require(self, key: str, kind: type[T]) -> T:
        """As get, but CheckpointError where absent."""
        value = self.get(key, kind)
        if value is None:
            raise CheckpointError(f"the file lacks {key}")
        return value

    def shapes(self) -> dict[str, tuple[int, ...]]:
        # GGUF counts the fastest dimension first.
        return {name: tuple(int(size) for size in reversed(tensor.shape)) for name, tensor in self._tensors.items()}

    def formats(self) -> dict[str, str]:
        """Storage format by tensor name, as GGUF spells it: "Q4_1", "F32"."""
        return {name: str(tensor.tensor_type.name) for name, tensor in self._tensors.items()}

    def quantisation(self) -> str:
        """Matrix formats by how many tensors use them: "Q4_1 (210), Q8_0 (1)"."""
        matrices = Counter(self.formats()[name] for name, shape in self.shapes().items() if len(shape) > 1)
        return ", ".join(f"{name} ({count})" for name, count in matrices.most_common())

    def read(self, name: str) -> Weight:
        """Rows of queries and keys come in half-split rotary order, whatever the file's own."""
        weight = self._read_as_stored(name)
        order = self._half_split_rows(name)
        return weight if order is None else weight.take_rows(order)

    def _read_as_stored(self, name: str) -> Weight:
        tensor = self._tensors[name]
        kind = tensor.tensor_type
        if kind in _DENSE:
            shape = self.shapes()[name]
            values = np.ascontiguousarray(tensor.data).view(_DENSE[kind]).reshape(shape)
            refuse_not_finite(values, name)
            return Dense(values)
        decode = DECODERS.get(kind.name)
        if decode is None:
            known = ", ".join([*(key.name for key in _DENSE), *DECODERS])
            raise UnsupportedError(
                f"tensor {name} is stored as {kind.name}, which has no exact form here (there are {known}); use --weights f32"
            )
        with np.errstate(invalid="ignore", over="ignore"):
            weight = decode(np.asarray(tensor.data))
        for constants in (weight.scale, weight.zero):
            if constants is not None:
                refuse_not_finite(constants, name)
        return weight

    def read_float32(self, name: str) -> Floats:
        tensor = self._tensors[name]
        try:
            values = dequantize(np.asarray(tensor.data), tensor.tensor_type)
        except NotImplementedError as error:
            raise UnsupportedError(
                f"tensor {name} is stored as {tensor.tensor_type.name}, which cannot be dequantised"
            ) from error
        whole = np.asarray(values, dtype=np.float32).reshape(self.shapes()[name])
        refuse_not_finite(whole, name)
        order = self._half_split_rows(name)
        return whole if order is None else whole[order]

    def _count_interleaved_heads(self) -> dict[str, int]:
        """llama.cpp stores Llama's query and key rows interleaved for its rotation, and no other family's."""
        if self.get("general.architecture", str) != "llama":
            return {}
        heads = self.get("llama.attention.head_count", int) or 0
        return {"attn_q": heads, "attn_k": self.get("llama.attention.head_count_kv", int) or heads}

    def _half_split_rows(self, name: str) -> NDArray[np.intp] | None:
        heads = self._interleaved_heads.get(name.split(".")[-2] if name.startswith("blk.") else "", 0)
        if not heads or len(self.shapes()[name]) == 0 or self.shapes()[name][0] % (2 * heads):
            return None
        return half_split_order(heads, self.shapes()[name][0] // heads)


def half_split_order(heads: int, head_dim: int) -> NDArray[np.intp]:
    """Rows of a projection from interleaved rotary order into half-split order, head by head."""
    order = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return order.swapaxes(1, 2).reshape(-1)
