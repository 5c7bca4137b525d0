"""A simulated engine ready for a server: by profile name, with the manifest and tokenizer that a built engine would have."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Generic, Literal, TypedDict, TypeVar, overload

import msgspec

from engines.contract import RequestExecutor, StepRunner
from engines.manifest import SCHEMA_VERSION, EngineManifest, ModelShape, Numerics, Source, StepProfile, TokenizerInfo
from engines.sampling.constraint import Constraints
from engines.simulated.clock import Clock
from engines.simulated.cost import CostModel, require_profile
from engines.simulated.draws import Drawer, LogitDrawer, TokenDrawer
from engines.simulated.executor import SimulatedExecutor
from engines.simulated.faults import Faults
from engines.simulated.language import Language
from engines.simulated.step_runner import SimulatedStepRunner
from engines.simulated.tokenizer import VOCAB_SIZE, text_alphabet, tokenizer_info, tokenizer_json

E_co = TypeVar("E_co", bound=StepRunner | RequestExecutor, covariant=True)


@dataclass(frozen=True, slots=True)
class SimulatedEngine(Generic[E_co]):
    """What a server needs to know of an engine before it starts it."""

    engine: E_co
    manifest: EngineManifest
    tokenizer_json: str
    language: Language


class SimulatedShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and habits of a simulated engine."""

    vocab_size: int = VOCAB_SIZE
    """Ids beyond the tokenizer's are accepted and never said."""
    max_context: int = 8192
    blocks: int = 4096
    block_size: int = 32
    max_rows: int = 256
    """Sequences in one step (an executor: its batch)."""
    max_step_tokens: int = 2048
    end_rate: float = 0.0
    """Share of steps whose likeliest token is an end-of-sequence id."""
    alphabet: Literal["text", "bytes"] = "text"
    """What it says: letters, or any byte, which makes characters split over tokens and invalid UTF-8."""
    draws: Literal["tokens", "logits"] = "tokens"
    """How tokens are drawn: by hash, or from a row of logits by the real sampler."""
    seed: int = 0
    """Equal seeds speak the same language."""


@overload
def load(
    profile: str = ...,
    shape: SimulatedShape = ...,
    *,
    executor: Literal[False] = ...,
    clock: Clock | None = ...,
    faults: Faults | None = ...,
    constraints: Constraints | None = ...,
) -> SimulatedEngine[SimulatedStepRunner]: ...


@overload
def load(
    profile: str = ...,
    shape: SimulatedShape = ...,
    *,
    executor: Literal[True],
    clock: Clock | None = ...,
    faults: Faults | None = ...,
    constraints: Constraints | None = ...,
) -> SimulatedEngine[SimulatedExecutor]: ...


def load(
    profile: str = "instant",
    shape: SimulatedShape | None = None,
    *,
    executor: bool = False,
    clock: Clock | None = None,
    faults: Faults | None = None,
    constraints: Constraints | None = None,
) -> SimulatedEngine[SimulatedStepRunner] | SimulatedEngine[SimulatedExecutor]:
    """A step runner, or with ``executor`` a request executor, that costs what ``profile`` says. Raises EngineLoadError for an unknown one.

    ``constraints``: what makes constraints of guides; None = no structured output."""
    shape, cost, info = shape or SimulatedShape(), require_profile(profile), tokenizer_info()
    language = Language(
        shape.vocab_size,
        end_ids=info.end_ids,
        end_rate=shape.end_rate,
        alphabet=text_alphabet() if shape.alphabet == "text" else range(256),
        seed=shape.seed,
    )
    parts = _Parts(
        cost=cost,
        clock=clock,
        seed=shape.seed,
        drawer=(LogitDrawer if shape.draws == "logits" else TokenDrawer)(language, constraints),
        faults=faults,
    )
    manifest = _manifest(profile, shape, cost, info)
    if executor:
        return SimulatedEngine(_executor(language, shape, parts), manifest, tokenizer_json(), language)
    return SimulatedEngine(_step_runner(language, shape, parts), manifest, tokenizer_json(), language)


class _Parts(TypedDict):
    """What both twins take alike."""

    cost: CostModel
    clock: Clock | None
    seed: int
    drawer: Drawer
    faults: Faults | None


def _executor(language: Language, shape: SimulatedShape, parts: _Parts) -> SimulatedExecutor:
    return SimulatedExecutor(
        language,
        blocks=shape.blocks,
        block_size=shape.block_size,
        max_batch_size=shape.max_rows,
        max_num_tokens=shape.max_step_tokens,
        max_context=shape.max_context,
        **parts,
    )


def _step_runner(language: Language, shape: SimulatedShape, parts: _Parts) -> SimulatedStepRunner:
    return SimulatedStepRunner(
        language,
        blocks=shape.blocks,
        block_size=shape.block_size,
        max_rows=shape.max_rows,
        max_step_tokens=shape.max_step_tokens,
        max_context=shape.max_context,
        **parts,
    )


def _manifest(profile: str, shape: SimulatedShape, cost: CostModel, info: TokenizerInfo) -> EngineManifest:
    identity = hashlib.sha256(msgspec.json.encode(("simulated", SCHEMA_VERSION, shape))).hexdigest()
    return EngineManifest(
        schema_version=SCHEMA_VERSION,
        engine="simulated",
        built_at="1970-01-01T00:00:00Z",
        fingerprint=identity,
        recipe="simulated-1",
        model=_model(shape),
        source=Source(
            name=f"simulated-{profile}",
            kind="simulated",
            origin=f"simulated:{profile}",
            sha256=identity,
            quantisation="none",
            licence="Apache-2.0",
        ),
        numerics=_EXACT,
        profile=_step_profile(cost),
        tokenizer=info,
        tools={},
        files=(),
    )


_EXACT = Numerics(
    weights="none",
    kv_cache="tokens",
    activations="u64",
    dynamic_quantisation=False,
    batch_invariant=True,
    golden_positions=0,
    golden_argmax_agreement=1.0,
    golden_max_difference=0.0,
    golden_mean_difference=0.0,
    tolerance=0.0,
)


def _model(shape: SimulatedShape) -> ModelShape:
    return ModelShape(
        family="simulated",
        layers=1,
        hidden=1,
        intermediate=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        vocab_size=shape.vocab_size,
        max_context=shape.max_context,
        parameters=0,
    )


def _step_profile(cost: CostModel) -> StepProfile:
    """What a builder would have fitted: the truth without its kink, and its noise as the error."""
    return StepProfile(
        fixed=cost.fixed,
        per_new_token=cost.per_new_token,
        per_decode=cost.per_decode,
        per_decode_context=cost.per_decode_context,
        per_attention=cost.per_attention,
        machine="simulated",
        relative_error=cost.noise,
    )
