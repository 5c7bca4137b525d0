"""From a manifest's numerics to the properties that the CPU plugin compiles with."""

from __future__ import annotations

from collections.abc import Mapping

from engines.contract import EngineLoadError
from engines.manifest import Numerics

_KV_PRECISIONS = ("u8", "f16", "bf16", "f32")
_ACTIVATIONS = ("f32", "bf16")
_WIDE_WEIGHTS = ("", "bf16")
_QUANTISATION_GROUP = "32"

Properties = dict[str, str]


def compile_properties(numerics: Numerics, threads: int, further: Mapping[str, str] | None = None) -> Properties:
    """Every numeric property is set: the plugin's defaults depend on the machine, an engine's numerics must not.

    ``further`` are properties to add. Raises EngineLoadError for numerics that the plugin does not know, or compiles and then fails to
    run, and for a further property that is set here already.
    """
    _require("kv_cache", numerics.kv_cache, _KV_PRECISIONS)
    _require("activations", numerics.activations, _ACTIVATIONS)
    _require("wide_weights", numerics.wide_weights, _WIDE_WEIGHTS)
    if numerics.kv_cache == "bf16" and numerics.activations != "bf16":
        raise EngineLoadError(
            f"numerics: kv_cache bf16 needs activations bf16, got {numerics.activations}; f16 or f32 keys and values go with f32"
        )
    if threads < 1:
        raise EngineLoadError(f"threads: must be at least 1, got {threads}")
    properties = {
        "INFERENCE_PRECISION_HINT": numerics.activations,
        "KV_CACHE_PRECISION": numerics.kv_cache,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _QUANTISATION_GROUP if numerics.dynamic_quantisation else "0",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads),
    }
    for name, value in (further or {}).items():
        if name in properties:
            raise EngineLoadError(
                f"properties: {name} is {properties[name]} by the manifest or an option, got {value!r}"
            )
        properties[name] = value
    return properties


def _require(field: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise EngineLoadError(f"numerics.{field}: must be one of {', '.join(known)}, got {value!r}")
