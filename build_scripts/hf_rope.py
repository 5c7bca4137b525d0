"""Rotary settings as public configs write them, old style (rope_theta, rope_scaling) and new (rope_parameters)."""

from __future__ import annotations

import dataclasses

from build_scripts.config_reader import ConfigReader
from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.rope import Rope, RopeScaling, longrope_attention_factor, yarn_attention_factor

_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def read_ropes(config: ConfigReader, head_dim: int, *, theta: float = 10000.0) -> tuple[Rope, Rope | None]:
    """The rotation of layers that see all, and that of windowed layers where a config tells them apart."""
    partial = config.number("partial_rotary_factor", 1.0)
    parameters = config.section("rope_parameters")
    if parameters is None:
        base = Rope(config.number("rope_theta", theta), int(head_dim * partial))
        scaling = config.section("rope_scaling")
        local = config.optional_number("rope_local_base_freq")
        rope = base if scaling is None else _scaled(base, scaling, config)
        return rope, None if local is None else dataclasses.replace(base, theta=local)
    config.ignore(frozenset({"rope_theta", "rope_scaling", "rope_local_base_freq"}))
    if parameters.has("full_attention"):
        return _by_layer_type(parameters, config, head_dim, theta)
    return _with_theta(parameters, config, head_dim, theta, partial), None


def _by_layer_type(
    parameters: ConfigReader, config: ConfigReader, head_dim: int, theta: float
) -> tuple[Rope, Rope | None]:
    whole, local = parameters.section("full_attention"), parameters.section("sliding_attention")
    parameters.refuse_unread()
    if whole is None:
        raise CheckpointError("config.json: rope_parameters lacks full_attention")
    local_rope = None if local is None else _with_theta(local, config, head_dim, 10000.0, 1.0)
    return _with_theta(whole, config, head_dim, theta, 1.0), local_rope


def _with_theta(parameters: ConfigReader, config: ConfigReader, head_dim: int, theta: float, partial: float) -> Rope:
    dims = int(head_dim * parameters.number("partial_rotary_factor", partial))
    return _scaled(Rope(parameters.number("rope_theta", theta), dims), parameters, config)


def _scaled(base: Rope, section: ConfigReader, config: ConfigReader) -> Rope:
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "su":
        kind = "longrope"
    if kind not in _KINDS:
        raise UnsupportedError(f'rope scaling "{kind}" is not implemented; there are {", ".join(_KINDS)}')
    read = {
        "default": _default,
        "linear": _linear,
        "dynamic": _dynamic,
        "llama3": _llama3,
        "yarn": _yarn,
        "longrope": _longrope,
    }[kind]
    scaling = read(section, config)
    if kind == "longrope":
        _check_factor_counts(scaling, base.dims // 2)
    section.refuse_unread()
    return dataclasses.replace(base, scaling=scaling)


def _default(section: ConfigReader, config: ConfigReader) -> RopeScaling:
    del config
    section.ignore(frozenset({"factor"}))
    return RopeScaling()


def _linear(section: ConfigReader, config: ConfigReader) -> RopeScaling:
    del config
    # Only a note of what was trained: linear interpolation does not use it.
    section.ignore(frozenset({"original_max_position_embeddings"}))
    return RopeScaling("linear", factor=_factor(section))


def _dynamic(section: ConfigReader, config: ConfigReader) -> RopeScaling:
    section.ignore(frozenset({"original_max_position_embeddings"}))
    return RopeScaling("dynamic", factor=_factor(section), original_context=config.whole("max_position_embeddings"))


def _llama3(section: ConfigReader, config: ConfigReader) -> RopeScaling:
    del config
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if high <= low:
        raise CheckpointError(f"rope scaling: high_freq_factor {high} must be above low_freq_factor {low}")
    return RopeScaling(
        "llama3",
        factor=_factor(section),
        original_context=section.whole("original_max_position_embeddings"),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(section: ConfigReader, config: ConfigReader) -> RopeScaling:
    factor = _factor(section)
    original = section.whole("original_max_position_embeddings", config.whole("max_position_embeddings"))
    stated = section.optional_number("attention_factor")
    inferred = yarn_attention_factor(
        factor, section.optional_number("mscale"), section.optional_number("mscale_all_dim")
    )
    return RopeScaling(
        "yarn",
        factor=factor,
        original_context=original,
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.flag("truncate", True),
        attention_factor=inferred if stated is None else stated,
    )


def _longrope(section: ConfigReader, config: ConfigReader) -> RopeScaling:
    reach = config.whole("max_position_embeddings")
    original = config.optional_whole("original_max_position_embeddings") or section.whole(
        "original_max_position_embeddings", reach
    )
    section.ignore(frozenset({"original_max_position_embeddings"}))
    factor = section.number("factor", reach / original)
    stated = section.optional_number("attention_factor")
    return RopeScaling(
        "longrope",
        factor=factor,
        original_context=original,
        short_factors=section.numbers("short_factor"),
        long_factors=section.numbers("long_factor"),
        attention_factor=longrope_attention_factor(factor, original) if stated is None else stated,
    )


def _factor(section: ConfigReader) -> float:
    factor = section.number("factor")
    if factor <= 0:
        raise CheckpointError(f"rope scaling: factor must be above 0, it is {factor}")
    return factor


def _check_factor_counts(scaling: RopeScaling, wanted: int) -> None:
    for name, factors in (("short_factor", scaling.short_factors), ("long_factor", scaling.long_factors)):
        if len(factors) != wanted:
            raise CheckpointError(
                f"rope scaling: {name} holds {len(factors)} values, the head has {wanted} frequencies"
            )
