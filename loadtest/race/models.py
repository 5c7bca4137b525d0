"""The one model in the forms that the peers read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from build_scripts.source import default_cache, resolve
from loadtest.planner.machine import read_manifest
from loadtest.race.environment import HOME, RaceError


class RaceModel(msgspec.Struct, frozen=True):
    """Paths. All forms hold the same 4-bit checkpoint; Q8_0 stores its dequantised weights in 8 bits."""

    engine: Path
    gguf: Path
    gguf_q8: Path

    @property
    def tokenizer(self) -> Path:
        return self.engine / "tokenizer.json"


def find_model(engine: Path) -> RaceModel:
    """The engine's own source file, and its 8-bit twin, made here where it is missing. Raises RaceError."""
    manifest = read_manifest(engine)
    source = resolve("smollm2", cache=default_cache(), progress=lambda _: None)
    if manifest.source.sha256 != source.sha256:
        raise RaceError(
            f"{engine} was built from {manifest.source.name} (sha256 {manifest.source.sha256[:12]}), the peers get {source.path.name}"
        )
    twin = HOME / (source.path.stem.replace("Q4_1", "Q8_0") + ".gguf")
    if not twin.is_file():
        HOME.mkdir(parents=True, exist_ok=True)
        write_q8(source.path, twin)
    return RaceModel(engine, source.path, twin)


def write_q8(source: Path, target: Path) -> None:
    """Store a GGUF file's matrices as Q8_0: dequantised exactly, rounded to 8 bits."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

    reader = GGUFReader(source)
    scratch = target.with_suffix(".part")
    writer = GGUFWriter(scratch, str(_field(reader, "general.architecture")))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind = field.types[0]
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), kind, sub)
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim < 2:
            writer.add_tensor(tensor.name, values)
            continue
        eight = GGMLQuantizationType.Q8_0
        writer.add_tensor(tensor.name, quants.quantize(values, eight), raw_dtype=eight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    scratch.rename(target)


def _field(reader: Any, name: str) -> Any:  # noqa: ANN401 - gguf ships no types
    return reader.fields[name].contents()
