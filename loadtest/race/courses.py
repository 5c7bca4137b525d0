"""The workloads of the race."""

from __future__ import annotations

import msgspec

from loadtest.arrivals import Arrivals, constant_rate
from loadtest.distributions import Distribution, choice
from loadtest.workload import Lengths, SharedPrefix, Turns, Workload

WIDTHS = (1, 4, 8, 16, 32)
PROMPT, OUTPUT = 128, 64


class Scale(msgspec.Struct, frozen=True):
    """How long the race takes."""

    repeats: int
    requests_per_stream: int
    seconds: float
    """Of each open-loop course."""


FULL = Scale(repeats=5, requests_per_stream=4, seconds=60.0)
QUICK = Scale(repeats=1, requests_per_stream=1, seconds=6.0)


def _fixed(value: float) -> Distribution:
    return Distribution("constant", {"value": float(value)})


def lengths(prompt: int = PROMPT, output: int = OUTPUT) -> Lengths:
    return Lengths(_fixed(prompt), _fixed(output))


def closed(width: int, scale: Scale, seed: int) -> Workload:
    """``width`` streams at any time."""
    return Workload(seed=seed, concurrency=width, requests=width * scale.requests_per_stream, lengths=lengths())


def poisson(rate: float, scale: Scale, seed: int) -> Workload:
    """Requests that come at random, as people do."""
    return Workload(
        seed=seed,
        arrivals=Arrivals(constant_rate(rate)),
        duration=scale.seconds,
        warmup=scale.seconds / 10,
        lengths=Lengths(
            Distribution("uniform", {"low": PROMPT / 2, "high": PROMPT * 1.5}),
            Distribution("uniform", {"low": OUTPUT / 2, "high": OUTPUT * 1.5}),
        ),
    )


def shared_prefix(rate: float, scale: Scale, seed: int) -> Workload:
    """A system prompt of 512 tokens before every question. The first request, which computes it, is left out."""
    return Workload(
        seed=seed,
        arrivals=Arrivals(constant_rate(rate)),
        duration=scale.seconds,
        warmup=scale.seconds / 10,
        lengths=lengths(32, OUTPUT),
        prefix=SharedPrefix(512),
    )


def conversations(scale: Scale, seed: int) -> Workload:
    """Four people who talk, four turns each, everything said so far sent again."""
    return Workload(
        seed=seed,
        concurrency=4,
        requests=4 * scale.requests_per_stream,
        lengths=lengths(64, 48),
        turns=Turns(_fixed(4), _fixed(0.2)),
    )


def long_prompts(rate: float, scale: Scale, seed: int) -> Workload:
    """Short questions, and now and then a document of 1,500 tokens among them."""
    return Workload(
        seed=seed,
        arrivals=Arrivals(constant_rate(rate)),
        duration=scale.seconds,
        warmup=scale.seconds / 10,
        lengths=Lengths(choice({64.0: 0.95, 1500.0: 0.05}, "long prompts"), _fixed(OUTPUT)),
    )
