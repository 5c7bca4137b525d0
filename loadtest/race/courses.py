"""The workloads of the race."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from loadtest.arrivals import Arrivals, constant_rate
from loadtest.distributions import Distribution, choice
from loadtest.workload import Lengths, SharedPrefix, Turns, Workload

WIDTHS = (1, 4, 8, 16, 32)
PROMPT, OUTPUT = 128, 64
FEWEST = 4
"""Requests of a single stream for each that a wider course makes per stream: two alone would be too few for a median."""


class Scale(msgspec.Struct, frozen=True):
    """How long the race takes. Legs of different scales must not be put into one table."""

    repeats: int
    requests_per_stream: int
    seconds: float
    """Of each open-loop course."""


FULL = Scale(repeats=5, requests_per_stream=1, seconds=20.0)
"""Short legs, many repeats: who else is on the machine then disturbs one leg and not the median."""
QUICK = Scale(repeats=1, requests_per_stream=1, seconds=6.0)


def _fixed(value: float) -> Distribution:
    return Distribution("constant", {"value": float(value)})


def lengths(prompt: int = PROMPT, output: int = OUTPUT) -> Lengths:
    return Lengths(_fixed(prompt), _fixed(output))


def closed(width: int, scale: Scale, seed: int) -> Workload:
    """``width`` streams at any time."""
    count = width * scale.requests_per_stream if width > 1 else FEWEST * scale.requests_per_stream
    return Workload(seed=seed, concurrency=width, requests=count, lengths=lengths())


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


class Course(msgspec.Struct, frozen=True):
    """One workload that every peer runs. An open-loop course comes at a share of the best peer's throughput."""

    key: str
    """What ``--only`` calls it."""
    title: str
    make: Callable[[float, Scale, int], Workload]
    """(requests per second, scale, seed) -> what is asked; closed-loop courses have no use for the rate."""
    share: float | None = None
    """Of the best peer's throughput; None = closed loop."""


def _closed(width: int, _rate: float, scale: Scale, seed: int) -> Workload:
    return closed(width, scale, seed)


def _conversations(_rate: float, scale: Scale, seed: int) -> Workload:
    return conversations(scale, seed)


COURSES = (
    *(Course(str(width), f"{width} streams", partial(_closed, width)) for width in WIDTHS),
    Course("half", "random arrivals at 50 % of the best peer's capacity", poisson, 0.5),
    Course("busy", "random arrivals at 90 % of the best peer's capacity", poisson, 0.9),
    Course("prefix", "shared system prompt of 512 tokens", shared_prefix, 0.5),
    Course("talk", "conversations of four turns", _conversations),
    Course("documents", "short questions with a long document now and then", long_prompts, 0.3),
)


def seed_of(course: Course, repeat: int) -> int:
    """One for each course and repeat: a prompt that comes again would be answered from a server's prefix cache."""
    return 1000 * (1 + COURSES.index(course)) + repeat
