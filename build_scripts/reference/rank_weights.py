"""One rank file, read a tensor at a time into the reference's float type."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from numpy.typing import DTypeLike

from build_scripts.errors import CheckpointError
from build_scripts.reference.arithmetic import Array
from build_scripts.safetensors_file import SafetensorsFile
from build_scripts.weights import Dense


class RankWeights:
    def __init__(self, path: Path, quantisation: dict[str, Any], dtype: DTypeLike) -> None:
        self._file = SafetensorsFile(path)
        self._quantisation = quantisation
        self._dtype = dtype

    def has(self, name: str) -> bool:
        return name in self._file.entries

    def require_layers(self, count: int) -> None:
        """Raises CheckpointError where the file holds another number of layers."""
        found = (re.match(r"transformer\.layers\.(\d+)\.", name) for name in self._file.entries)
        layers = {int(match[1]) for match in found if match}
        if layers != set(range(count)):
            raise CheckpointError(f"{self._file.path.name} holds layers {sorted(layers)}, its stage has {count}")

    def tensor(self, name: str) -> Array:
        return Dense(self._file.read(name)).to_float32().astype(self._dtype, copy=False)

    def product(self, values: Array, name: str) -> Array:
        """``values`` times the transposed weight, without bias."""
        return values @ self.tensor(f"{name}.weight").T

    def add_bias(self, values: Array, name: str) -> Array:
        return values + self.tensor(f"{name}.bias") if self.has(f"{name}.bias") else values

    def linear(self, values: Array, name: str) -> Array:
        return self.add_bias(self.product(values, name), name)
