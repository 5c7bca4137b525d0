"""What is simulated: an engine's limits and what its steps cost."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engines.contract import KvGroup, RunnerLimits
from engines.manifest import MANIFEST_NAME, EngineManifest, StepProfile
from engines.simulated.cost import PROFILES as COSTS
from engines.simulated.cost import CostModel
from loadtest.errors import WorkloadError


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine as the simulator knows it. A JSON file with these fields serves as ``--profile FILE``."""

    name: str
    source: str
    """Where the numbers come from; said in every report."""
    cost: CostModel
    kv_tokens: int
    """Tokens that the KV memory holds."""
    block_size: int = 32
    max_context: int = 131_072
    max_rows: int = 256
    max_step_tokens: int = 8192
    overhead: float = 2e-4
    """Seconds of a step outside the engine: planning, handing over."""

    def limits(self) -> RunnerLimits:
        return RunnerLimits(
            vocab_size=VOCABULARY,
            block_size=self.block_size,
            block_count=self.kv_tokens // self.block_size,
            bytes_per_block=self.block_size,
            max_rows=self.max_rows,
            max_step_tokens=self.max_step_tokens,
            max_context=min(self.max_context, self.kv_tokens // self.block_size * self.block_size),
            kv_groups=(KvGroup((0,), None, 1),),
        )

    def step_profile(self) -> StepProfile:
        """What a builder would have put into the manifest: the truth without its kink."""
        cost = self.cost
        return StepProfile(
            fixed=cost.fixed,
            per_new_token=cost.per_new_token,
            per_decode=cost.per_decode,
            per_decode_context=cost.per_decode_context,
            per_attention=cost.per_attention,
            machine=self.name,
            relative_error=cost.noise,
        )


VOCABULARY = 32_768

PROFILES = {
    "embedded": Profile(
        name="embedded",
        source="SmolLM2-135M on two cores of a server CPU, measured by `firsttoken build`",
        cost=COSTS["laptop"],
        kv_tokens=32_768,
        max_context=8192,
        max_rows=64,
        max_step_tokens=2048,
    ),
    # Weights 16 GB at 3.35 TB/s; 16 GFLOP a token at 60 % of 989 TFLOP/s; attention 4 * 32 * 4096 FLOP a pair at 40 %;
    # 128 KiB of keys and values a token, read at 80 % of the bandwidth; 56 GB left for them.
    "h100-8b-tp1": Profile(
        name="h100-8b-tp1",
        source="an estimate, not a measurement: Llama-3.1-8B in bf16 on one H100 SXM, from the data sheet's arithmetic and bandwidth",
        cost=CostModel(
            fixed=6.0e-3,
            per_new_token=2.7e-5,
            per_decode=1.5e-5,
            per_decode_context=4.9e-8,
            per_attention=1.3e-9,
            noise=0.03,
            kink_at=4096,
            kink_factor=1.1,
        ),
        kv_tokens=425_000,
    ),
    # Weights 141 GB over four at 3.35 TB/s, and two all-reduces in each of 80 layers; 80 KiB of keys and values a token and device.
    "h100-70b-tp4": Profile(
        name="h100-70b-tp4",
        source="an estimate, not a measurement: Llama-3.1-70B in bf16 on four H100 SXM, from the data sheet's arithmetic and bandwidth",
        cost=CostModel(
            fixed=1.35e-2,
            per_new_token=7.0e-5,
            per_decode=2.0e-5,
            per_decode_context=3.1e-8,
            per_attention=1.6e-9,
            noise=0.03,
            kink_at=4096,
            kink_factor=1.1,
        ),
        kv_tokens=448_000,
    ),
}


def read_profile(name: str) -> Profile:
    """A named profile, a JSON file with a Profile's fields, or a built engine's directory. Raises WorkloadError."""
    if name in PROFILES:
        return PROFILES[name]
    path = Path(name)
    try:
        if path.is_dir():
            return _of_manifest(msgspec.json.decode((path / MANIFEST_NAME).read_bytes(), type=EngineManifest))
        return msgspec.json.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        raise WorkloadError(f"--profile: {name!r} is none of {', '.join(PROFILES)}, nor a file: {error}") from error
    except msgspec.MsgspecError as error:
        raise WorkloadError(f"--profile: {name}: {error}") from error


def _of_manifest(manifest: EngineManifest) -> Profile:
    measured, defaults = manifest.profile, PROFILES["embedded"]
    cost = CostModel(
        fixed=measured.fixed,
        per_new_token=measured.per_new_token,
        per_decode=measured.per_decode,
        per_decode_context=measured.per_decode_context,
        per_attention=measured.per_attention,
        noise=measured.relative_error,
    )
    return msgspec.structs.replace(
        defaults,
        name=manifest.source.name,
        source=f"its manifest, measured on {measured.machine}",
        cost=cost,
        max_context=manifest.model.max_context,
        kv_tokens=max(defaults.kv_tokens, manifest.model.max_context),
    )
