"""LoRA adapters: a directory of directories, each named as requests name it and holding the two arrays that TensorRT-LLM reads."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engines.contract import EngineLoadError

WEIGHTS, MODULES = "model.lora_weights.npy", "model.lora_config.npy"
"""As TensorRT-LLM's hf_lora_convert.py writes them; the second has a row for each module: its kind, its layer, its rank."""
_RANK_COLUMN = 2


@dataclass(frozen=True)
class Adapter:
    name: str
    directory: Path

    @property
    def missing(self) -> list[str]:
        """Files that are not there."""
        return [name for name in (WEIGHTS, MODULES) if not (self.directory / name).is_file()]

    @property
    def rank(self) -> int:
        """The highest of its modules. Raises EngineLoadError where the file is not such an array."""
        path = self.directory / MODULES
        try:
            return int(np.load(path)[..., _RANK_COLUMN].max())
        except (OSError, ValueError, IndexError) as error:
            raise EngineLoadError(
                f"{path}: not an array of rows (module, layer, rank) ({error}); convert the adapter again with TensorRT-LLM's "
                "hf_lora_convert.py"
            ) from error

    @property
    def bytes(self) -> int:
        return (self.directory / WEIGHTS).stat().st_size


def find_adapters(registry: str) -> tuple[Adapter, ...]:
    """The adapters of ``engine.adapters``, by name; none where it is empty. Raises EngineLoadError where it is no directory."""
    if not registry:
        return ()
    directory = Path(registry)
    if not directory.is_dir():
        raise EngineLoadError(
            f"engine.adapters: {directory} is no directory; it must hold one directory for each adapter, named as requests name it"
        )
    return tuple(Adapter(path.name, path) for path in sorted(directory.iterdir()) if path.is_dir())


@contextlib.contextmanager
def numbered(adapters: tuple[Adapter, ...]) -> Iterator[str]:
    """A directory as the library wants it: each adapter under its number, counted from 1, for as long as the executor is made."""
    with tempfile.TemporaryDirectory(prefix="firsttoken-lora-") as folder:
        for number, adapter in enumerate(adapters, 1):
            (Path(folder) / str(number)).symlink_to(adapter.directory.resolve(), target_is_directory=True)
        yield folder
