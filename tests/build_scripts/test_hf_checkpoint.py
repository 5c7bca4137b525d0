"""A Hugging Face directory is read whole or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_scripts.errors import BuildError, CheckpointError, UnsupportedError
from build_scripts.golden.tiny_models import tensor
from build_scripts.hf_checkpoint import INDEX, HfCheckpoint
from tests.build_scripts.tiny import BY_NAME, cast, stored_shapes, write_model, write_tensors

LLAMA = BY_NAME["llama2"]
PHI = BY_NAME["phi3"]


def same_tensors(left: HfCheckpoint, right: HfCheckpoint) -> bool:
    return all(np.array_equal(left.read(name).values, right.read(name).values) for name in left.decoder.tensors())


def test_shards_give_what_one_file_gives(tmp_path: Path) -> None:
    whole = HfCheckpoint(write_model(tmp_path / "one", LLAMA))
    parts = HfCheckpoint(write_model(tmp_path / "many", LLAMA, shards=3))
    assert same_tensors(whole, parts)


def test_links_are_followed(tmp_path: Path) -> None:
    """The hub's cache holds links into a store of blobs; the directory itself may be a link as well."""
    store = write_model(tmp_path / "store", LLAMA, shards=2)
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in store.iterdir():
        (snapshot / path.name).symlink_to(path)
    linked = tmp_path / "linked"
    linked.symlink_to(snapshot)
    assert same_tensors(HfCheckpoint(store), HfCheckpoint(linked))


def test_fused_matrices_are_cut_by_rows(tmp_path: Path) -> None:
    checkpoint = HfCheckpoint(write_model(tmp_path, PHI))
    fused = tensor(PHI, "model.layers.1.self_attn.qkv_proj.weight", (128, 64))
    assert np.array_equal(checkpoint.read("blk.1.attn_q.weight").values, fused[:64])
    assert np.array_equal(checkpoint.read("blk.1.attn_k.weight").values, fused[64:96])
    assert np.array_equal(checkpoint.read("blk.1.attn_v.weight").values, fused[96:])


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_half_precision_keeps_its_bits(dtype: str, tmp_path: Path) -> None:
    checkpoint = HfCheckpoint(write_model(tmp_path, LLAMA, dtype=dtype))
    stored = cast(tensor(LLAMA, "model.norm.weight", (64,)), dtype)
    assert np.array_equal(checkpoint.read("output_norm.weight").values, stored)
    assert checkpoint.quantisation() == f"{dtype} (16)"


def test_spare_tensors_are_let_be(tmp_path: Path) -> None:
    """Old checkpoints store the rotary table; some store the head although it is tied."""
    model = BY_NAME["smollm2"]
    write_model(tmp_path, model)
    names = stored_shapes(model.name)
    tensors: dict[str, Any] = {name: tensor(model, name, shape) for name, shape in names.items()}
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    write_tensors(tmp_path / "model.safetensors", tensors)
    assert HfCheckpoint(tmp_path).shapes() == HfCheckpoint(tmp_path).decoder.tensors()


def cut_short(directory: Path) -> None:
    shard = directory / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])


def cut_inside_header(directory: Path) -> None:
    shard = directory / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:40])


def drop_shard(directory: Path) -> None:
    (directory / "model-00001-of-00002.safetensors").unlink()


def break_link(directory: Path) -> None:
    shard = directory / "model-00001-of-00002.safetensors"
    shard.unlink()
    shard.symlink_to(directory / "blobs" / "gone")


def change_index(directory: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((directory / INDEX).read_text())
    change(index["weight_map"])
    (directory / INDEX).write_text(json.dumps(index))


def drop_index_entry(directory: Path) -> None:
    change_index(directory, lambda places: places.pop("model.norm.weight"))


def misplace_index_entry(directory: Path) -> None:
    def swap(places: dict[str, str]) -> None:
        other = set(places.values()) - {places["model.norm.weight"]}
        places["model.norm.weight"] = other.pop()

    change_index(directory, swap)


def drop_index(directory: Path) -> None:
    (directory / INDEX).unlink()


def drop_config(directory: Path) -> None:
    (directory / "config.json").unlink()


def break_config(directory: Path) -> None:
    (directory / "config.json").write_text('{"model_type": "llama"')


def only_pickles(directory: Path) -> None:
    shutil.rmtree(directory)
    write_model(directory, LLAMA)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


FAULTS: list[tuple[Callable[[Path], None], type[BuildError], str]] = [
    (cut_short, CheckpointError, "model-00002-of-00002.safetensors ends at byte"),
    (cut_inside_header, CheckpointError, "model-00001-of-00002.safetensors is not a whole safetensors file"),
    (drop_shard, CheckpointError, "model-00001-of-00002.safetensors is not there"),
    (break_link, CheckpointError, "model-00001-of-00002.safetensors is a link to a file that is not there"),
    (drop_index_entry, CheckpointError, "holds tensor model.norm.weight, which model.safetensors.index.json does not"),
    (misplace_index_entry, CheckpointError, "places tensor model.norm.weight in"),
    (drop_index, CheckpointError, "holds neither model.safetensors nor model.safetensors.index.json"),
    (drop_config, CheckpointError, "holds no config.json"),
    (break_config, CheckpointError, "cannot read config.json"),
    (only_pickles, UnsupportedError, "pickled .bin files"),
]


@pytest.mark.parametrize(("fault", "kind", "says"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_directory_is_refused(
    fault: Callable[[Path], None], kind: type[BuildError], says: str, tmp_path: Path
) -> None:
    fault(write_model(tmp_path / "model", LLAMA, shards=2))
    with pytest.raises(kind, match=says) as caught:
        HfCheckpoint(tmp_path / "model")
    assert "\n" not in str(caught.value)


def rewrite(directory: Path, change: Callable[[dict[str, Any]], object], dtypes: dict[str, str] | None = None) -> None:
    write_model(directory, LLAMA)
    tensors: dict[str, Any] = {name: tensor(LLAMA, name, shape) for name, shape in stored_shapes("llama2").items()}
    change(tensors)
    from build_scripts.safetensors_file import SafetensorsWriter

    declared = {name: ((dtypes or {}).get(name, "F32"), values.shape) for name, values in tensors.items()}
    with SafetensorsWriter(directory / "model.safetensors", declared) as writer:
        for name, values in tensors.items():
            writer.write(name, values)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    rewrite(tmp_path, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(CheckpointError, match=r"lacks tensor blk.1.ffn_up.weight"):
        HfCheckpoint(tmp_path)


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    rewrite(tmp_path, lambda tensors: tensors.update({"model.layers.0.mlp.router.weight": np.ones((2, 2), np.float32)}))
    with pytest.raises(UnsupportedError, match=r"mlp\.router\.weight has no place"):
        HfCheckpoint(tmp_path)


def test_a_misshapen_tensor_is_named(tmp_path: Path) -> None:
    rewrite(tmp_path, lambda tensors: tensors.update({"model.norm.weight": np.ones(63, np.float32)}))
    with pytest.raises(
        CheckpointError, match=r"output_norm.weight should have shape \(64,\), the checkpoint has \(63,\)"
    ):
        HfCheckpoint(tmp_path)


def test_a_wrong_dtype_is_named(tmp_path: Path) -> None:
    integers = {"model.norm.weight": np.ones(64, np.int64)}
    rewrite(tmp_path, lambda tensors: tensors.update(integers), {"model.norm.weight": "I64"})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight is stored as I64; weights are F32, F16, BF16"):
        HfCheckpoint(tmp_path)


@pytest.mark.parametrize("wild", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_placed(wild: float, tmp_path: Path) -> None:
    def poison(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"][7, 9] = wild

    rewrite(tmp_path, poison)
    checkpoint = HfCheckpoint(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"lm_head.weight holds a value that is not finite, the first at \(7, 9\)"
    ):
        checkpoint.read("output.weight")


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_infinities_are_found(dtype: str, tmp_path: Path) -> None:
    checkpoint = HfCheckpoint(write_model(tmp_path, LLAMA, dtype=dtype))
    path = tmp_path / "model.safetensors"
    entry = checkpoint._files["model.norm.weight"].entries["model.norm.weight"]
    with path.open("r+b") as file:
        file.seek(entry.start + 10)
        file.write((0x7C00 if dtype == "F16" else 0x7F80).to_bytes(2, "little"))
    with pytest.raises(CheckpointError, match=r"the first at \(5,\)"):
        checkpoint.read("output_norm.weight")


def test_a_quantised_checkpoint_is_refused_by_its_method(tmp_path: Path) -> None:
    write_model(tmp_path, LLAMA, quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(UnsupportedError, match='quantization_config "gptq"'):
        HfCheckpoint(tmp_path)
