"""The course of every build, whatever is built: stop at the plan, stop where it is done already, else the bill, the work, the result."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Protocol, TypeVar

from build_scripts.progress import Reporter
from firsttoken.build_output import ConsoleReporter


class Planned(Protocol):
    """All that is known before work starts."""

    def up_to_date(self) -> bool: ...


P = TypeVar("P", bound=Planned)
P_contra = TypeVar("P_contra", bound=Planned, contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)


class Shown(Protocol[P_contra, R_contra]):
    """What a user sees of a build; results on stdout."""

    def planned(self, plan: P_contra, /) -> None: ...
    def up_to_date(self, plan: P_contra, /) -> None: ...
    def bill(self, plan: P_contra, /) -> None: ...
    def built(self, plan: P_contra, result: R_contra, /) -> None: ...


class Build(Protocol[P_contra, R_co]):
    def __call__(self, plan: P_contra, reporter: Reporter, /, *, force: bool) -> R_co: ...


def follow(
    args: argparse.Namespace, make_plan: Callable[[Reporter], P], build: Build[P, R], output: Shown[P, R]
) -> int:
    """0 = what was asked for is there. Reads ``args.plan`` and ``args.force``. Raises BuildError."""
    with ConsoleReporter() as reporter:
        plan = make_plan(reporter)
    if args.plan:
        output.planned(plan)
        return 0
    if not args.force and plan.up_to_date():
        output.up_to_date(plan)
        return 0
    output.bill(plan)
    with ConsoleReporter() as reporter:
        result = build(plan, reporter, force=args.force)
    output.built(plan, result)
    return 0
