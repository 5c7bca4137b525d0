"""The memory that keys and values live in: allocated once, cut into blocks, handed to the library as tensors that share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import openvino as ov

from engines.contract import BlockCopy, EngineLoadError

_ALIGNMENT = 64

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class CachePort:
    """One input of the compiled model that keys or values of a layer go through."""

    name: str
    element_type: ov.Type
    block_shape: tuple[int, ...]
    """A block's shape: KV heads, rows, columns."""

    @property
    def block_bytes(self) -> int:
        return int(np.prod(self.block_shape)) * int(self.element_type.size)


def cache_ports(compiled: ov.CompiledModel, kind: str) -> list[CachePort]:
    """The ports ``kind``.0, ``kind``.1, ... in the order of layers; ``kind`` is key_cache or value_cache."""
    found: dict[int, CachePort] = {}
    for port in compiled.inputs:
        name = port.get_any_name()
        if name.startswith(f"{kind}."):
            shape = tuple(int(size.get_length()) for size in list(port.get_partial_shape())[1:])
            found[int(name.rsplit(".", 1)[1])] = CachePort(name, port.get_element_type(), shape)
    if sorted(found) != list(range(len(found))) or not found:
        raise EngineLoadError(f"model.xml: inputs {kind}.0 .. {kind}.N are expected, got layers {sorted(found)}")
    return [found[layer] for layer in sorted(found)]


class _Cache:
    """Keys, or values, of all layers: one array [layers, blocks, bytes of a block]."""

    def __init__(self, ports: Sequence[CachePort], block_count: int) -> None:
        sizes = {port.block_bytes for port in ports}
        if len(sizes) != 1:
            raise EngineLoadError(f"model.xml: {ports[0].name} and its siblings differ in block size: {sorted(sizes)}")
        self.block_bytes = sizes.pop()
        shape = (len(ports), block_count, self.block_bytes)
        raw = np.empty(int(np.prod(shape)) + _ALIGNMENT, np.uint8)
        offset = -raw.ctypes.data % _ALIGNMENT
        self.bytes: Bytes = raw[offset : offset + int(np.prod(shape))].reshape(shape)
        self.tensors = {
            port.name: ov.Tensor(self.bytes[layer], ov.Shape([block_count, *port.block_shape]), port.element_type)
            for layer, port in enumerate(ports)
        }


class KvMemory:
    """Blocks 0 .. block_count - 1, each the keys and values of ``block_size`` tokens in every layer. Ids are checked by the caller."""

    def __init__(self, compiled: ov.CompiledModel, block_count: int) -> None:
        keys, values = cache_ports(compiled, "key_cache"), cache_ports(compiled, "value_cache")
        self.layers = len(keys)
        self.block_count = block_count
        # The keys' rows also hold their scales when they are quantised by channel; the values' rows are tokens.
        self.block_size = values[0].block_shape[1]
        self._caches = (_Cache(keys, block_count), _Cache(values, block_count))
        self.layout = ", ".join(
            f"{name} {port.element_type.get_type_name()}{list(port.block_shape)}"
            for name, port in (("keys", keys[0]), ("values", values[0]))
        )
        """What a block's bytes are, in words that another process can compare."""

    @property
    def bytes_per_block(self) -> int:
        return sum(cache.block_bytes for cache in self._caches) * self.layers

    def attach(self, request: ov.InferRequest) -> None:
        """Once: the request keeps the tensors."""
        for cache in self._caches:
            for name, tensor in cache.tensors.items():
                request.set_tensor(name, tensor)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Whole blocks, all layers, in order: a later copy may read what an earlier one wrote."""
        for copy in copies:
            for cache in self._caches:
                cache.bytes[:, copy.target] = cache.bytes[:, copy.source]

    def read(self, block: int) -> bytes:
        """Keys of all layers, then values of all layers."""
        return b"".join(cache.bytes[:, block].tobytes() for cache in self._caches)

    def write(self, block: int, content: bytes) -> None:
        flat = np.frombuffer(content, np.uint8)
        split = self._caches[0].block_bytes * self.layers
        for cache, part in zip(self._caches, (flat[:split], flat[split:]), strict=True):
            cache.bytes[:, block] = part.reshape(self.layers, -1)

    def fill(self, byte: int) -> None:
        """Overwrite everything; 0xFF makes every float of every precision a NaN. Commits the memory's pages."""
        for cache in self._caches:
            cache.bytes.fill(byte)


def bytes_per_block(compiled: ov.CompiledModel) -> int:
    """What one block costs, from the shapes that the compiled model asks for."""
    return sum(port.block_bytes for kind in ("key_cache", "value_cache") for port in cache_ports(compiled, kind))
