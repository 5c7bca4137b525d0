"""What a rank file is made of: a plain checkpoint in either kind of file, or one that ModelOpt quantised."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from build_scripts.casting import FloatType
from build_scripts.decoder import Decoder
from build_scripts.errors import UnsupportedError
from build_scripts.gguf_checkpoint import GgufCheckpoint
from build_scripts.gguf_description import describe
from build_scripts.hf_checkpoint import HfCheckpoint
from build_scripts.trtllm.config import Quantisation
from build_scripts.trtllm.modelopt import CONFIG, ModelOptCheckpoint
from build_scripts.trtllm.recipe import DenseSource, FloatRecipe, Recipe
from build_scripts.weights import Dense, TensorSource

_STORED_TYPES: dict[str, FloatType] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
WEIGHT_ONLY = {"int8": "W8A16", "int4": "W4A16"}
"""trtllm-build quantises the floats of such a checkpoint itself, into the order that its kernels want."""
CALIBRATED = {"fp8": "fp8", "nvfp4": "nvfp4", "int4_awq": "int4_awq", "w4a8_awq": "w4a8_awq"}


@dataclass(frozen=True)
class CheckpointSource:
    decoder: Decoder
    recipe: Recipe = field(repr=False)
    floats: DenseSource | None = field(repr=False)
    """For the proof; None where the checkpoint is quantised already."""
    dtype: FloatType
    quantisation: Quantisation
    summary: str
    """What was found, for the bill: "BF16 (211)"."""
    notes: tuple[str, ...] = ()


class DequantisedSource:
    """A quantised GGUF as floats, a tensor at a time."""

    def __init__(self, tensors: TensorSource) -> None:
        self._tensors = tensors

    def read(self, name: str) -> Dense:
        stored = self._tensors.read(name)
        return stored if isinstance(stored, Dense) else Dense(self._tensors.read_float32(name))


def open_source(path: Path, dtype: FloatType | None, weights: str | None) -> CheckpointSource:
    """``weights``: None, or a key of WEIGHT_ONLY or CALIBRATED. Raises CheckpointError and UnsupportedError."""
    if weights in CALIBRATED:
        raise UnsupportedError(delegation(path, CALIBRATED[weights]))
    if path.is_dir() and (path / CONFIG).exists():
        return _open_quantised(path, dtype, weights)
    source = _open_directory(path, dtype) if path.is_dir() else _open_gguf(path, dtype)
    if weights is None:
        return source
    if weights not in WEIGHT_ONLY:
        raise UnsupportedError(
            f"--weights {weights} is none of TensorRT-LLM's; there are {', '.join([*WEIGHT_ONLY, *CALIBRATED])}"
        )
    return _weight_only(source, WEIGHT_ONLY[weights])


def delegation(path: Path, form: str) -> str:
    """What needs activations to be measured on a GPU is ModelOpt's work, and is not imitated here."""
    return (
        f"{form} needs calibration on a GPU, which ModelOpt does: run `python hf_ptq.py --pyt_ckpt_path {path} --qformat {form} "
        f"--export_fmt hf --export_path {path.name}-{form}` (examples/llm_ptq of NVIDIA/Model-Optimizer), then build {path.name}-{form}"
    )


def _open_directory(path: Path, dtype: FloatType | None) -> CheckpointSource:
    checkpoint = HfCheckpoint(path)
    chosen = dtype or _STORED_TYPES[checkpoint.formats()["blk.0.attn_q.weight"]]
    recipe = FloatRecipe(checkpoint.decoder, checkpoint, chosen)
    return CheckpointSource(checkpoint.decoder, recipe, checkpoint, chosen, Quantisation(), checkpoint.quantisation())


def _open_gguf(path: Path, dtype: FloatType | None) -> CheckpointSource:
    file = GgufCheckpoint(path)
    decoder, source = describe(file), DequantisedSource(file)
    file.forget_metadata()
    stored = file.formats()["blk.0.attn_q.weight"]
    chosen = dtype or _STORED_TYPES.get(stored, "float16")
    notes = (
        ()
        if stored in _STORED_TYPES
        else (f"{file.quantisation()}: dequantised to {chosen}, TensorRT-LLM has no such codes",)
    )
    recipe = FloatRecipe(decoder, source, chosen)
    return CheckpointSource(decoder, recipe, source, chosen, Quantisation(), file.quantisation(), notes)


def _open_quantised(path: Path, dtype: FloatType | None, weights: str | None) -> CheckpointSource:
    checkpoint = ModelOptCheckpoint(path)
    algo = checkpoint.quantisation.quant_algo
    if weights is not None:
        raise UnsupportedError(f"--weights {weights} cannot be made of a checkpoint that is {algo} already")
    if dtype not in (None, checkpoint.dtype):
        raise UnsupportedError(f"--dtype {dtype} differs from the quantised checkpoint's {checkpoint.dtype}")
    summary = f"{algo}, passed through"
    return CheckpointSource(checkpoint.decoder, checkpoint, None, checkpoint.dtype, checkpoint.quantisation, summary)


def _weight_only(source: CheckpointSource, algo: str) -> CheckpointSource:
    if source.dtype == "float32":
        raise UnsupportedError(f"{algo} is made of float16 or bfloat16; give --dtype (the checkpoint is float32)")
    note = f"{algo}: the rank files hold {source.dtype}, trtllm-build quantises them for the kernels of its GPU"
    return CheckpointSource(
        source.decoder,
        source.recipe,
        source.floats,
        source.dtype,
        Quantisation(algo),
        source.summary,
        (*source.notes, note),
    )
