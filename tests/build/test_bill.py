"""The bill's numbers are those of real engines."""

from __future__ import annotations

from pathlib import Path

import openvino as ov
import pytest
from openvino._offline_transformations import paged_attention_transformation

from build_scripts.bill import BLOCK_SIZE, KV_PRECISIONS, draw_up, kv_bytes_per_token, stored_bytes
from build_scripts.gguf_checkpoint import GgufCheckpoint
from build_scripts.gguf_description import describe
from build_scripts.graph import build_graph
from build_scripts.hf_description import describe_config
from build_scripts.numerics import Activations, NumericsChoice, WeightForm, numerics_choice
from engines.manifest import ModelShape
from tests.build.tiny_gguf import Kind, TinyShape, write_tiny_gguf
from tests.build_scripts.small_models import CONFIG
from tests.build_scripts.test_memory import LARGE

SMOLLM2 = ModelShape("llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, 134_515_008)


@pytest.mark.parametrize(("precision", "bytes_"), [("u8", 13680), ("f16", 23040), ("bf16", 23040), ("f32", 46080)])
def test_bytes_per_token_of_the_default_model(precision: str, bytes_: int) -> None:
    assert kv_bytes_per_token(SMOLLM2, precision) == bytes_


@pytest.mark.parametrize("precision", KV_PRECISIONS)
def test_bytes_per_token_are_what_the_compiled_engine_allocates(precision: str, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "tiny.gguf", shape=TinyShape(layers=3, kv_heads=2)))
    decoder = describe(checkpoint)
    model = build_graph(decoder, checkpoint, dequantise=False, progress=lambda _: None)
    paged_attention_transformation(model)
    activations = "bf16" if precision == "bf16" else "f32"
    settings = {"KV_CACHE_PRECISION": precision, "INFERENCE_PRECISION_HINT": activations}
    compiled = ov.Core().compile_model(model, "CPU", settings)
    caches = [port for port in compiled.inputs if "_cache." in port.get_any_name()]
    assert len(caches) == 6
    allocated = 0
    for port in caches:
        size = port.element_type.size
        for dimension in list(port.partial_shape)[1:]:
            size *= dimension.get_length()
        allocated += size
    assert kv_bytes_per_token(decoder, precision) * BLOCK_SIZE == allocated


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.F16, Kind.BF16, Kind.F32])
@pytest.mark.parametrize("weights", ["gguf", "f32"])
def test_weights_on_disk_are_what_was_billed(kind: Kind, weights: str, tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "tiny.gguf", matrices=kind))
    decoder = describe(checkpoint)
    choice = NumericsChoice("f32" if weights == "f32" else "gguf")
    bill = draw_up(decoder, checkpoint.formats(), choice, "gguf")
    model = build_graph(decoder, checkpoint, dequantise=weights == "f32", progress=lambda _: None)
    ov.save_model(model, str(tmp_path / "model.xml"), compress_to_fp16=False)
    written = (tmp_path / "model.bin").stat().st_size
    # Beside the weights lie the small constants of the graph.
    assert bill.weights <= written <= bill.weights + 8192


def test_a_format_that_cannot_be_kept_is_billed_as_float32() -> None:
    assert stored_bytes((2, 32), "IQ2_XS") == 256


def test_room_is_counted_in_whole_blocks(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "tiny.gguf"))
    bill = draw_up(describe(checkpoint), checkpoint.formats(), numerics_choice(kv_cache="f16"), "gguf")
    block = bill.kv_per_token["f16"] * BLOCK_SIZE
    assert bill.sequences(1, 10 * block) == 10
    assert bill.sequences(33, 10 * block) == 5
    assert bill.sequences(33, 10 * block - 1) == 4
    assert bill.sequences(1000, 10 * block) == 0


def test_the_build_is_billed_for_what_it_holds_at_once(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "tiny.gguf"))
    decoder, formats = describe(checkpoint), checkpoint.formats()
    kept, widened = (draw_up(decoder, formats, numerics_choice(weights), "gguf") for weights in ("gguf", "f32"))
    assert widened.weights > 4 * kept.weights
    assert kept.build_memory >= 2 * kept.weights + 170_000_000
    assert kept.loaded >= 2 * kept.weights


MEASURED = {
    ("bf16", "bf16"): 4559,
    ("bf16", "f32"): 4657,
    ("f16", "f32"): 4655,
    ("f32", "f32"): 8906,
    ("int8", "bf16"): 2415,
    ("int8", "f32"): 2488,
    ("int4", "bf16"): 1685,
    ("int4", "f32"): 1735,
}
"""Most that was resident, in MB, while tests/build_scripts/test_memory.py's two gigabytes were built, by weights and activations."""


@pytest.mark.parametrize(("weights", "activations"), MEASURED)
def test_a_build_is_billed_a_little_more_than_it_was_measured_to_take(
    weights: WeightForm, activations: Activations
) -> None:
    decoder = describe_config(CONFIG | LARGE)
    formats = dict.fromkeys(decoder.tensors(), "BF16")
    bill = draw_up(decoder, formats, numerics_choice(weights, activations=activations), "huggingface")
    measured = MEASURED[weights, activations] * 10**6
    assert measured <= bill.build_memory <= 1.1 * measured


SMOLLM2_CONFIG = CONFIG | {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("choice", "measured"),
    [
        (NumericsChoice("gguf", "bf16", "bf16", "bf16"), 1453),
        (NumericsChoice("gguf", "f16", "f32"), 787),
        (NumericsChoice("bf16", "bf16", "bf16"), 1030),
    ],
)
def test_so_is_a_build_of_the_default_model(choice: NumericsChoice, measured: int) -> None:
    decoder = describe_config(SMOLLM2_CONFIG)
    stored = {name: "Q4_1" if len(shape) > 1 else "F32" for name, shape in decoder.tensors().items()}
    bill = draw_up(decoder, stored | {"token_embd.weight": "Q8_0"}, choice, "gguf")
    assert measured * 10**6 <= bill.build_memory <= 1.1 * measured * 10**6


def test_a_gguf_file_is_mapped_and_its_vocabulary_read(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "tiny.gguf", matrices=Kind.F32, embeddings=Kind.F32))
    decoder, formats = describe(checkpoint), checkpoint.formats()
    kinds = [draw_up(decoder, formats, numerics_choice("f32"), kind).build_memory for kind in ("gguf", "huggingface")]
    assert kinds[0] - kinds[1] == 4 * decoder.parameters() + 200 * decoder.vocab_size


@pytest.mark.parametrize(("kind", "wider"), [(Kind.F16, 0), (Kind.BF16, 0), (Kind.F32, 2)])
def test_float32_is_held_in_the_activations_precision_and_half_floats_as_stored(
    kind: Kind, wider: int, tmp_path: Path
) -> None:
    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "tiny.gguf", matrices=kind, embeddings=kind))
    decoder, formats = describe(checkpoint), checkpoint.formats()
    narrow = draw_up(decoder, formats, numerics_choice(activations="bf16"), "gguf")
    wide = draw_up(decoder, formats, numerics_choice(activations="f32"), "gguf")
    assert wide.weights == narrow.weights
    assert wide.loaded - narrow.loaded == pytest.approx(decoder.parameters() * wider, rel=0.01, abs=10_000)


@pytest.mark.parametrize(
    ("kind", "held"),
    [(Kind.Q4_0, "u4"), (Kind.Q4_1, "u4"), (Kind.Q8_0, "i8"), (Kind.F16, "f32"), (Kind.F32, "f32")],
)
def test_the_library_holds_weights_as_billed(kind: Kind, held: str, tmp_path: Path) -> None:
    """Codes must stay codes in the compiled engine: folded to floats they would take eight times the memory and bandwidth."""
    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "tiny.gguf", matrices=kind, embeddings=Kind.F32))
    model = build_graph(describe(checkpoint), checkpoint, dequantise=False, progress=lambda _: None)
    paged_attention_transformation(model)
    compiled = ov.Core().compile_model(
        model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    )
    details = [node.get_rt_info() for node in compiled.get_runtime_model().get_ops()]
    matrices = [
        info["runtimePrecision"].astype(str) for info in details if info["layerType"].astype(str) == "FullyConnected"
    ]
    assert matrices.count(held) >= 2 * 5  # queries, keys and values come of one
