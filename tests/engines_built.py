"""The real default model, built once into the repository's engine-cache/ and reused as long as it is up to date."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from build_scripts.build import BuildRequest, Plan, build, make_plan
from build_scripts.errors import PublishError
from build_scripts.numerics import NumericsChoice, NumericsWish, numerics_choice
from build_scripts.source import DEFAULT_MODEL, default_cache

ENGINE_CACHE = Path(__file__).resolve().parent.parent / "engine-cache"
_LOCK_PATIENCE = 240.0
"""Seconds to wait for another test run that is building the same engine."""


class SilentReporter:
    """Implements build_scripts.progress.Reporter."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.counts: list[int] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def stage(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        self.note(f"{text} ({total})")
        yield self.counts.append


@cache
def default_engine() -> Path:
    """The engine that `firsttoken build` makes. Needs the network once; seconds when it is there, a minute when not."""
    return _built(NumericsWish("gguf"))


@cache
def f32_engine() -> Path:
    """Float32 weights, activations, keys and values: the engine whose tokens do not depend on the batch."""
    return _built(numerics_choice(weights="f32"))


def _built(choice: NumericsChoice | NumericsWish) -> Path:
    output = ENGINE_CACHE / f"{DEFAULT_MODEL}-{choice.weights}"
    reporter = SilentReporter()
    plan = make_plan(BuildRequest(DEFAULT_MODEL, output, choice, default_cache()), reporter)
    patience = time.monotonic() + _LOCK_PATIENCE
    while not plan.up_to_date():
        if _build_unless_locked(plan, reporter) or time.monotonic() > patience:
            break
        time.sleep(1.0)
    if not plan.up_to_date():
        raise PublishError(f"{output} was not built within {_LOCK_PATIENCE:.0f} s")
    return output


def _build_unless_locked(plan: Plan, reporter: SilentReporter) -> bool:
    try:
        build(plan, reporter)
    except PublishError as error:
        if "another build" in str(error):
            return False
        raise
    return True
