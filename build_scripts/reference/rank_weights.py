"""One rank file, read a tensor at a time into the reference's float type.

Quantised weights are taken for the numbers that their codes and scales stand for; activations are not quantised here, so
that what is proven is the split and the naming, not the rounding of a kernel.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from build_scripts.errors import CheckpointError
from build_scripts.reference.arithmetic import Array
from build_scripts.reference.float_formats import dequantise, e4m3
from build_scripts.safetensors_file import SafetensorsFile
from build_scripts.weights import Dense


class RankWeights:
    def __init__(self, path: Path, quantisation: dict[str, Any], dtype: DTypeLike) -> None:
        self._file = SafetensorsFile(path)
        self._algorithm = quantisation["quant_algo"]
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
        values = self._file.read(name)
        if self._file.entries[name].dtype == "F8_E4M3":
            return np.asarray(e4m3(values), dtype=self._dtype)
        return Dense(values).to_float32().astype(self._dtype, copy=False)

    def product(self, values: Array, name: str) -> Array:
        """``values`` times the transposed weight, without bias."""
        if self.has(f"{name}.prequant_scaling_factor"):
            values = values * self.tensor(f"{name}.prequant_scaling_factor")
        return values @ self._weight(name).T

    def add_bias(self, values: Array, name: str) -> Array:
        return values + self.tensor(f"{name}.bias") if self.has(f"{name}.bias") else values

    def linear(self, values: Array, name: str) -> Array:
        return self.add_bias(self.product(values, name), name)

    def _weight(self, name: str) -> Array:
        if not self.has(f"{name}.weights_scaling_factor"):
            return self.tensor(f"{name}.weight")
        second = f"{name}.weights_scaling_factor_2"
        whole = self.tensor(second) if self.has(second) else None
        scale = self.tensor(f"{name}.weights_scaling_factor")
        return dequantise(self._algorithm, self._file.read(f"{name}.weight"), scale, whole).astype(self._dtype)
