"""The numbers that an engine computes with, as a user may choose them, and which choices go together."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import openvino as ov

from build_scripts.errors import UnsupportedError
from engines.openvino.fitness import openvino_version

WeightForm: TypeAlias = Literal["gguf", "f32", "f16", "bf16", "int8", "int4"]
FORMS: tuple[str, ...] = get_args(WeightForm)
KvPrecision: TypeAlias = Literal["u8", "f16", "bf16", "f32"]
Activations: TypeAlias = Literal["f32", "bf16"]
WideForm: TypeAlias = Literal["bf16"]


@dataclass(frozen=True)
class NumericsChoice:
    """docs/building.md has the figures of each choice."""

    weights: WeightForm = "gguf"
    """How matrices are stored: "gguf" keeps the checkpoint's quantisation bit for bit, the others are made of its numbers."""
    kv_cache: KvPrecision = "f16"
    activations: Activations = "f32"
    wide_weights: WideForm | None = None
    """A second copy of quantised matrices, for steps of many tokens; build_scripts/wide_form.py decides."""

    def __post_init__(self) -> None:
        # The plugin compiles this pair and then fails at the first step.
        if self.kv_cache == "bf16" and self.activations != "bf16":
            raise UnsupportedError(
                f"--kv-cache bf16 needs --activations bf16, given {self.activations}; f16 takes as many bytes"
            )

    @property
    def lossy(self) -> bool:
        """Whether the engine's weights are not the checkpoint's numbers."""
        return self.weights in ("int8", "int4")

    @property
    def batch_invariant(self) -> bool:
        """Float32 throughout, in one form: sums differ in their last bits only, so greedy tokens do not depend on the batch."""
        return self.kv_cache == "f32" and self.activations == "f32" and self.wide_weights is None


@dataclass(frozen=True)
class NumericsWish:
    """What a user said, before the checkpoint is known."""

    weights: WeightForm | None = None
    """None = the default for the kind of checkpoint."""
    kv_cache: KvPrecision | None = None
    """None = what goes with the weights."""
    activations: Activations | None = None
    """None = what this machine computes fastest with, unless something else asks for f32."""
    wide_weights: WideForm | Literal["none"] | None = None
    """None = where it pays, as build_scripts/wide_form.py says."""

    def settled(self, weights: WeightForm) -> NumericsChoice:
        """What is built, with these weights."""
        exact = weights == "f32" or self.kv_cache == "f32"
        return numerics_choice(weights, self.kv_cache, self.activations or ("f32" if exact else native_activations()))


def numerics_choice(
    weights: WeightForm = "gguf", kv_cache: KvPrecision | None = None, activations: Activations = "f32"
) -> NumericsChoice:
    """``kv_cache`` None = what goes with the rest: f32 weights are asked for by those who want exactness throughout."""
    if kv_cache is None:
        kv_cache = "bf16" if activations == "bf16" else "f32" if weights == "f32" else "f16"
    return NumericsChoice(weights, kv_cache, activations)


def native_activations() -> Activations:
    """bf16 where this CPU multiplies it: a long prompt then takes 0.6 of the time that it takes in f32."""
    return "bf16" if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"


def fingerprint(source_sha256: str, choice: NumericsChoice, recipe: str) -> str:
    """Equal fingerprints give equal keys and values: source, numerics, our recipe, and the library that runs it."""
    identity = {
        "source": source_sha256,
        "weights": choice.weights,
        "kv_cache": choice.kv_cache,
        "activations": choice.activations,
        "wide_weights": choice.wide_weights,
        "recipe": recipe,
        "openvino": openvino_version(),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
