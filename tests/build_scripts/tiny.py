"""Writes a tiny model as a Hugging Face directory, whole or in shards, and reads its golden log-probabilities."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from build_scripts.golden.tiny_models import TINY_MODELS, TinyModel, tensor
from build_scripts.safetensors_file import SafetensorsWriter

GOLDEN = Path(__file__).parents[2] / "build_scripts" / "golden"
BY_NAME = {model.name: model for model in TINY_MODELS}


@cache
def stored_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model's tensors, as transformers counted them."""
    every = json.loads((GOLDEN / "families.json").read_text())
    return {tensor_name: tuple(shape) for tensor_name, shape in every[name].items()}


@cache
def golden(name: str) -> NDArray[np.float32]:
    """[positions, vocabulary]"""
    with np.load(GOLDEN / "families.npz") as arrays:
        return np.asarray(arrays[name])


def write_model(directory: Path, model: TinyModel, *, shards: int = 1, dtype: str = "F32", **changes: Any) -> Path:
    """``changes`` replace keys of the config; a value of None removes the key."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in (model.config | changes).items() if key not in changes or value is not None}
    (directory / "config.json").write_text(json.dumps(config))
    shapes = stored_shapes(model.name)
    parts = [sorted(shapes)[start::shards] for start in range(shards)]
    weight_map: dict[str, str] = {}
    for number, names in enumerate(parts, 1):
        name = "model.safetensors" if shards == 1 else f"model-{number:05}-of-{shards:05}.safetensors"
        write_tensors(directory / name, {key: cast(tensor(model, key, shapes[key]), dtype) for key in names}, dtype)
        weight_map |= dict.fromkeys(names, name)
    if shards > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def write_tensors(path: Path, tensors: dict[str, NDArray[Any]], dtype: str = "F32") -> None:
    with SafetensorsWriter(path, {name: (dtype, values.shape) for name, values in tensors.items()}) as writer:
        for name, values in tensors.items():
            writer.write(name, values)


def cast(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """bfloat16 by truncation: tests do not care how it rounds."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype])
