"""All that is known of an engine before a GPU is used: its limits, its bill, the exact commands. Weights need not be there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from build_scripts.casting import FloatType
from build_scripts.decoder import Decoder
from build_scripts.errors import UnsupportedError
from build_scripts.hf_checkpoint import read_json
from build_scripts.hf_description import describe_config
from build_scripts.target_device import TargetDevice, check_capability
from build_scripts.trtllm.bill import draw_up
from build_scripts.trtllm.build import CheckpointRequest
from build_scripts.trtllm.config import Quantisation, attention_windows
from build_scripts.trtllm.convert import Conversion, plan_conversion
from build_scripts.trtllm.limits import (
    EngineBill,
    EngineLimits,
    LimitsWish,
    Profile,
    choose_limits,
    engine_bill,
)
from build_scripts.trtllm.options import build_command, build_options
from build_scripts.trtllm.recipe import FloatRecipe, Recipe
from build_scripts.trtllm.source import WEIGHT_ONLY
from build_scripts.trtllm.unattended import check_quantisation
from build_scripts.weights import Dense

RECIPE = "trtllm-engine-2"
"""Changed whenever the same checkpoint and limits would be compiled with other options."""
TIMING_CACHE = "timing.cache"
_TYPES: dict[str, FloatType] = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}


@dataclass(frozen=True)
class EngineWish:
    profile: Profile
    limits: LimitsWish
    device: TargetDevice


@dataclass(frozen=True)
class EnginePlan:
    name: str
    conversion: Conversion = field(repr=False)
    device: TargetDevice
    profile: Profile
    limits: EngineLimits
    bill: EngineBill
    checkpoint: Path
    output: Path

    @property
    def decoder(self) -> Decoder:
        return self.conversion.decoder

    @property
    def options(self) -> dict[str, str]:
        return build_options(self.conversion, self.device, self.limits, self.profile)

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(min(window, self.limits.max_seq_len) for window in attention_windows(self.decoder))

    def command(self, output: Path | None = None, timing_cache: Path | None = None) -> list[str]:
        """The compiler's command line. The timing cache lies beside the engine, where the next build finds it."""
        cache = timing_cache or self.output.parent / TIMING_CACHE
        return build_command(
            self.checkpoint, output or self.output, cache, self.conversion.layout.world_size, self.options
        )


def plan_engine(
    name: str, conversion: Conversion, recipe: Recipe, wish: EngineWish, *, checkpoint: Path, output: Path
) -> EnginePlan:
    """Raises UnsupportedError, both numbers named, for what the model or the device cannot do."""
    check_capability(wish.device, conversion.quantisation.quant_algo)
    check_quantisation(conversion.quantisation, wish.device)
    ranks = draw_up(conversion, recipe).ranks
    limits = choose_limits(conversion, ranks, wish.device, wish.profile, wish.limits)
    bill = engine_bill(conversion, ranks, wish.device, limits)
    return EnginePlan(name, conversion, wish.device, wish.profile, limits, bill, checkpoint, output)


class _NoWeights:
    """Stands where a checkpoint's tensors would: shapes are known from the config, numbers are not there."""

    def read(self, name: str) -> Dense:
        raise UnsupportedError(f"{name}: only the config is here, so nothing can be built of it")


def is_config_alone(model: str) -> bool:
    """Whether ``model`` is a directory with a config.json and no weights: enough for a plan, and for nothing else."""
    directory = Path(model)
    return (directory / "config.json").is_file() and not any(directory.glob("*.safetensors"))


def plan_from_config(request: CheckpointRequest, wish: EngineWish) -> EnginePlan:
    """A plan out of config.json alone. Raises BuildError."""
    directory = Path(request.model)
    values = read_json(directory / "config.json")
    stated = str(values.get("torch_dtype") or values.get("dtype") or "bfloat16")
    dtype = request.dtype or _TYPES.get(stated, "bfloat16")
    decoder = describe_config(values)
    if request.weights is not None and request.weights not in WEIGHT_ONLY:
        raise UnsupportedError(
            f"--weights {request.weights} cannot be planned from a config alone: quantise with ModelOpt, then plan its result"
        )
    quantisation = Quantisation(WEIGHT_ONLY[request.weights]) if request.weights else Quantisation()
    conversion = plan_conversion(
        decoder, request.layout, dtype, quantisation=quantisation, share_embedding=request.share_embedding
    )
    recipe = FloatRecipe(decoder, _NoWeights(), dtype)
    checkpoint = request.output or checkpoint_place(directory.name, request, dtype)
    return plan_engine(directory.name, conversion, recipe, wish, checkpoint=checkpoint, output=engine_place(checkpoint))


def checkpoint_place(name: str, request: CheckpointRequest, dtype: FloatType) -> Path:
    layout = request.layout
    return Path("engine-cache") / f"{name}-trtllm-{request.weights or dtype}-tp{layout.tp}-pp{layout.pp}"


def engine_place(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}-engine")
