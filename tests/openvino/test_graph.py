"""The paged graph keeps stored weights as they are: a float32 copy of each would be most of the memory of a loaded engine."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import pytest

from build_scripts.gguf_checkpoint import GgufCheckpoint
from build_scripts.gguf_description import describe
from build_scripts.graph import build_graph
from engines.openvino.graph import page
from tests.build.tiny_gguf import Kind, write_tiny_gguf

STACKED = (".attn_q.weight", ".attn_k.weight", ".attn_v.weight")


def constants(compiled: ov.CompiledModel) -> dict[tuple[int, ...], set[str]]:
    """Element types of the compiled engine's matrices, by shape."""
    found: dict[tuple[int, ...], set[str]] = {}
    for node in compiled.get_runtime_model().get_ops():
        if node.get_rt_info()["layerType"].astype(str) == "Const":
            shape = tuple(int(size.get_length()) for size in node.get_output_partial_shape(0))
            found.setdefault(shape, set()).add(node.get_output_element_type(0).get_type_name())
    return found


@pytest.mark.parametrize("activations", ["f32", "bf16"])
@pytest.mark.parametrize(("kind", "held"), [(Kind.BF16, "bf16"), (Kind.F16, "f16"), (Kind.F32, "f32")])
def test_float_matrices_stay_as_stored(kind: Kind, held: str, activations: str, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "tiny.gguf", matrices=kind, embeddings=kind))
    decoder = describe(checkpoint)
    tensors = decoder.tensors()
    # Queries, keys and values are one product.
    stacked = [shape for name, shape in tensors.items() if name.endswith(STACKED)]
    layers = len(stacked) // 3
    matrices = {shape for name, shape in tensors.items() if len(shape) == 2 and not name.endswith(STACKED)}
    matrices.add((sum(rows for rows, _ in stacked) // layers, stacked[0][1]))
    built = build_graph(decoder, checkpoint, dequantise=False, progress=lambda _: None)
    ov.save_model(built, str(tmp_path / "model.xml"), compress_to_fp16=False)
    core = ov.Core()
    model = core.read_model(str(tmp_path / "model.xml"))
    page(model)
    found = constants(core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": activations}))
    assert [found[shape] for shape in matrices] == [{held}] * len(matrices)
