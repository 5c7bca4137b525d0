"""The rank files alone compute what the checkpoint computes, for every family, option, tp and pp."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from build_scripts.casting import FloatType
from build_scripts.errors import UnsupportedError
from build_scripts.golden.tiny_models import TINY_MODELS, TinyModel, tokens
from build_scripts.hf_checkpoint import HfCheckpoint
from build_scripts.reference import ranks
from build_scripts.safetensors_file import SafetensorsFile
from build_scripts.trtllm.config import attention_windows
from build_scripts.trtllm.convert import plan_conversion, write_checkpoint
from build_scripts.trtllm.layout import Layout
from build_scripts.trtllm.proof import prove_sharding, unsharded_log_probabilities
from build_scripts.trtllm.recipe import FloatRecipe
from tests.build_scripts.tiny import BY_NAME, golden, write_model, write_tensors

LIMIT = 1e-12

REFUSED_LAYOUTS = {
    "smollm2": {2: "tp 2 cannot share 9 query heads", 4: "this model takes tp 1, 3", 8: "tp 8 cannot share 9"},
    "phi3-longrope-short": {8: "tp 8 cannot share 4"},
    "phi3-longrope-long": {8: "tp 8 cannot share 4"},
    "phi4-mini": {8: "tp 8 cannot share 4"},
}
NO_PIPELINE = ("phi3-longrope-short", "phi3-longrope-long", "phi4-mini")
NOT_EXPRESSIBLE = {
    "gemma3-scaled": 'would apply rope scaling "linear" to local layers too',
}
BEYOND_CONTEXT = ("llama-dynamic-beyond",)
"""Dynamic scaling is converted for the context it was trained on; this golden sequence is longer."""


def open_model(directory: Path, model: TinyModel) -> HfCheckpoint:
    return HfCheckpoint(write_model(directory / "source", model))


def convert(
    checkpoint: HfCheckpoint,
    directory: Path,
    layout: Layout,
    dtype: FloatType = "float32",
    *,
    share_embedding: bool = False,
) -> Path:
    conversion = plan_conversion(checkpoint.decoder, layout, dtype, share_embedding=share_embedding)
    directory.mkdir()
    write_checkpoint(conversion, FloatRecipe(checkpoint.decoder, checkpoint, dtype), directory, lambda _: None)
    return directory


CASES = [
    pytest.param(model, tp, pp, id=f"{model.name}-tp{tp}-pp{pp}")
    for model in TINY_MODELS
    if model.name not in NOT_EXPRESSIBLE
    for tp in ((1, 3) if model.name == "smollm2" else (1, 2, 4, 8))
    if tp not in REFUSED_LAYOUTS.get(model.name, {})
    for pp in ((1,) if model.name in NO_PIPELINE else (1, 2))
]


@cache
def expected(name: str) -> NDArray[Any]:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        checkpoint = open_model(Path(directory), BY_NAME[name])
        chosen = tokens(BY_NAME[name])[: checkpoint.decoder.static_context]
        return unsharded_log_probabilities(checkpoint.decoder, checkpoint, "float32", chosen)


@pytest.mark.parametrize(("model", "tp", "pp"), CASES)
def test_ranks_in_lockstep_equal_the_checkpoint(model: TinyModel, tp: int, pp: int, tmp_path: Path) -> None:
    checkpoint = open_model(tmp_path, model)
    directory = convert(checkpoint, tmp_path / "ranks", Layout(tp, pp))
    ranks_wanted = {f"rank{rank}.safetensors" for rank in range(tp * pp)}
    assert {path.name for path in directory.iterdir()} == {"config.json", *ranks_wanted}
    chosen = tokens(model)[: len(expected(model.name))]
    found = ranks.log_probabilities(directory, chosen, windows=attention_windows(checkpoint.decoder))
    assert np.abs(found - expected(model.name)).max() < LIMIT


@pytest.mark.parametrize(
    "model", [m for m in TINY_MODELS if m.name not in (*NOT_EXPRESSIBLE, *BEYOND_CONTEXT)], ids=lambda m: m.name
)
def test_ranks_agree_with_transformers(model: TinyModel, tmp_path: Path) -> None:
    checkpoint = open_model(tmp_path, model)
    tp = 3 if model.name == "smollm2" else 2
    directory = convert(checkpoint, tmp_path / "ranks", Layout(tp, 1))
    found = ranks.log_probabilities(directory, tokens(model), windows=attention_windows(checkpoint.decoder))
    assert np.abs(found[list(model.positions)] - golden(model.name)).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "tp", "says"), [(name, tp, says) for name, cases in REFUSED_LAYOUTS.items() for tp, says in cases.items()]
)
def test_a_layout_that_does_not_divide_is_refused_with_what_would(
    name: str, tp: int, says: str, tmp_path: Path
) -> None:
    checkpoint = open_model(tmp_path, BY_NAME[name])
    with pytest.raises(UnsupportedError, match=says):
        plan_conversion(checkpoint.decoder, Layout(tp, 1), "float32")


@pytest.mark.parametrize("name", NO_PIPELINE)
def test_an_architecture_without_pipelines_is_refused(name: str, tmp_path: Path) -> None:
    checkpoint = open_model(tmp_path, BY_NAME[name])
    with pytest.raises(UnsupportedError, match="Phi3ForCausalLM has no pipeline hand-over"):
        plan_conversion(checkpoint.decoder, Layout(2, 2), "float32")


@pytest.mark.parametrize("name", NOT_EXPRESSIBLE)
def test_what_an_architecture_cannot_express_is_refused(name: str, tmp_path: Path) -> None:
    checkpoint = open_model(tmp_path, BY_NAME[name])
    with pytest.raises(UnsupportedError, match=NOT_EXPRESSIBLE[name]):
        plan_conversion(checkpoint.decoder, Layout(1, 1), "float32")


# --------------------------------------------------------------------------- negative controls


def edit_rank(directory: Path, rank: int, change: Callable[[dict[str, NDArray[Any]]], None]) -> None:
    path = directory / f"rank{rank}.safetensors"
    file = SafetensorsFile(path)
    tensors = {name: file.read(name) for name in file.entries}
    change(tensors)
    write_tensors(path, tensors)


def swap_halves(tensors: dict[str, NDArray[Any]]) -> None:
    fc, gate = "transformer.layers.0.mlp.fc.weight", "transformer.layers.0.mlp.gate.weight"
    tensors[fc], tensors[gate] = tensors[gate], tensors[fc]


def swap_key_and_value(tensors: dict[str, NDArray[Any]]) -> None:
    qkv = tensors["transformer.layers.0.attention.qkv.weight"]
    each = qkv.shape[0] // 3 if qkv.shape[0] % 3 == 0 else qkv.shape[0] // 4
    tensors["transformer.layers.0.attention.qkv.weight"] = np.concatenate(
        [qkv[: -2 * each], qkv[-each:], qkv[-2 * each : -each]]
    )


def drop_bias(tensors: dict[str, NDArray[Any]]) -> None:
    tensors["transformer.layers.0.attention.qkv.bias"][:] = 0


def drop_output_bias(tensors: dict[str, NDArray[Any]]) -> None:
    tensors["transformer.layers.0.attention.dense.bias"][:] = 0


def misplace_norm(tensors: dict[str, NDArray[Any]]) -> None:
    first, second = "transformer.layers.0.input_layernorm.weight", "transformer.layers.0.post_layernorm.weight"
    tensors[first], tensors[second] = tensors[second], tensors[first]


def misplace_head_norm(tensors: dict[str, NDArray[Any]]) -> None:
    first, second = (f"transformer.layers.0.attention.{kind}_layernorm.weight" for kind in "qk")
    tensors[first], tensors[second] = tensors[second], tensors[first]


def leave_norm_shift_out(tensors: dict[str, NDArray[Any]]) -> None:
    tensors["transformer.layers.0.input_layernorm.weight"] -= 1


def untranspose_dense(tensors: dict[str, NDArray[Any]]) -> None:
    dense = "transformer.layers.0.attention.dense.weight"
    tensors[dense] = tensors[dense][:, ::-1].copy()


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("llama2", swap_halves),
        ("llama-linear", swap_key_and_value),
        ("qwen2", drop_bias),
        ("llama-biases-mqa", drop_output_bias),
        ("llama2", misplace_norm),
        ("qwen3", misplace_head_norm),
        ("gemma2", misplace_norm),
        ("gemma3", leave_norm_shift_out),
        ("llama2", untranspose_dense),
    ],
)
def test_a_mistake_in_the_split_is_seen(
    name: str, mistake: Callable[[dict[str, NDArray[Any]]], None], tmp_path: Path
) -> None:
    checkpoint = open_model(tmp_path, BY_NAME[name])
    directory = convert(checkpoint, tmp_path / "ranks", Layout(2, 1))
    for rank in range(2):
        edit_rank(directory, rank, mistake)
    proof = prove_sharding(checkpoint.decoder, checkpoint, "float32", directory, tokens(BY_NAME[name]))
    assert not proof.holds
    assert proof.max_difference > 1e-3


def test_a_wrongly_replicated_key_head_is_seen(tmp_path: Path) -> None:
    """Four key heads over eight ranks: rank 1 must hold head 0, as its query head belongs to that."""
    checkpoint = open_model(tmp_path, BY_NAME["llama-linear"])
    directory = convert(checkpoint, tmp_path / "ranks", Layout(8, 1))
    other = SafetensorsFile(directory / "rank2.safetensors").read("transformer.layers.0.attention.qkv.weight")

    def take_next_head(tensors: dict[str, NDArray[Any]]) -> None:
        tensors["transformer.layers.0.attention.qkv.weight"][8:] = other[8:]

    edit_rank(directory, 1, take_next_head)
    proof = prove_sharding(checkpoint.decoder, checkpoint, "float32", directory, tokens(BY_NAME["llama-linear"]))
    assert proof.max_difference > 1e-3


def test_layers_on_the_wrong_stage_are_seen(tmp_path: Path) -> None:
    checkpoint = open_model(tmp_path, BY_NAME["qwen2-window"])
    directory = convert(checkpoint, tmp_path / "ranks", Layout(1, 2))

    def swap_layers(tensors: dict[str, NDArray[Any]]) -> None:
        for name in [name for name in tensors if ".layers.0." in name]:
            second = name.replace(".layers.0.", ".layers.1.")
            tensors[name], tensors[second] = tensors[second], tensors[name]

    edit_rank(directory, 1, swap_layers)
    proof = prove_sharding(checkpoint.decoder, checkpoint, "float32", directory, tokens(BY_NAME["qwen2-window"]))
    assert proof.max_difference > 1e-3


# --------------------------------------------------------------------------- details


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once_and_split_exactly(dtype: FloatType, tmp_path: Path) -> None:
    for name in ("llama2", "gemma3"):
        checkpoint = open_model(tmp_path / name, BY_NAME[name])
        directory = convert(checkpoint, tmp_path / f"{name}-ranks", Layout(4, 1), dtype)
        proof = prove_sharding(checkpoint.decoder, checkpoint, dtype, directory, tokens(BY_NAME[name]))
        assert proof.max_difference < LIMIT


@pytest.mark.parametrize(("tp", "name"), [(1, "qwen2"), (2, "qwen2"), (4, "llama-tied-wide-heads")])
def test_a_shared_embedding_is_stored_once(tp: int, name: str, tmp_path: Path) -> None:
    checkpoint = open_model(tmp_path, BY_NAME[name])
    directory = convert(checkpoint, tmp_path / "ranks", Layout(tp, 1), share_embedding=True)
    assert "lm_head.weight" not in SafetensorsFile(directory / "rank0.safetensors").entries
    proof = prove_sharding(checkpoint.decoder, checkpoint, "float32", directory, tokens(BY_NAME[name]))
    assert proof.max_difference < LIMIT


def test_sharing_an_embedding_needs_a_tied_model_and_one_stage(tmp_path: Path) -> None:
    tied = open_model(tmp_path / "tied", BY_NAME["qwen2"]).decoder
    untied = open_model(tmp_path / "untied", BY_NAME["llama2"]).decoder
    with pytest.raises(UnsupportedError, match="only where the model ties"):
        plan_conversion(untied, Layout(1, 1), "float32", share_embedding=True)
    with pytest.raises(UnsupportedError, match="only with pp 1"):
        plan_conversion(tied, Layout(1, 2), "float32", share_embedding=True)


def test_the_vocabulary_is_padded_with_zeros(tmp_path: Path) -> None:
    checkpoint = open_model(tmp_path, BY_NAME["llama2"])  # 131 tokens
    directory = convert(checkpoint, tmp_path / "ranks", Layout(4, 1))
    heads = [SafetensorsFile(directory / f"rank{rank}.safetensors").read("lm_head.weight") for rank in range(4)]
    assert {head.shape for head in heads} == {(33, 64)}
    assert not heads[3][-1:].any()
    assert np.array_equal(np.concatenate(heads)[:131], checkpoint.read("output.weight").values)


def test_config_says_what_the_engine_builder_needs(tmp_path: Path) -> None:
    checkpoint = open_model(tmp_path, BY_NAME["llama3-scaled"])
    config = json.loads((convert(checkpoint, tmp_path / "ranks", Layout(2, 2)) / "config.json").read_text())
    assert config["architecture"] == "LlamaForCausalLM"
    assert config["mapping"] == {"world_size": 4, "tp_size": 2, "pp_size": 2}
    assert config["rotary_scaling"]["rope_type"] == "llama3"
    assert config["rotary_base"] == 500000.0
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_size"]) == (8, 4, 8)
    assert config["quantization"]["quant_algo"] is None


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    checkpoint = open_model(tmp_path, BY_NAME["gemma2"])
    first, second = (convert(checkpoint, tmp_path / name, Layout(2, 2)) for name in ("a", "b"))
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


def test_values_beyond_float16_are_refused(tmp_path: Path) -> None:
    from build_scripts.errors import CheckpointError

    model = BY_NAME["llama2"]
    checkpoint = open_model(tmp_path, model)
    path = tmp_path / "source" / "model.safetensors"
    file = SafetensorsFile(path)
    tensors = {name: file.read(name) for name in file.entries}
    tensors["model.norm.weight"][3] = 1e6
    write_tensors(path, tensors)
    with pytest.raises(CheckpointError, match=r"output_norm\.weight holds 1e\+06, beyond float16's 65504"):
        convert(HfCheckpoint(tmp_path / "source"), tmp_path / "ranks", Layout(1, 1), "float16")
    assert checkpoint.decoder.layers == 2
