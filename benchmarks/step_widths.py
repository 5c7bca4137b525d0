"""What a step takes by its number of tokens, in each form of an engine's weights: where WIDE_FROM lies (engines/openvino/session.py).

    python -m benchmarks.step_widths [ENGINE]

The engine must hold two forms. Milliseconds, the fastest of interleaved repeats, behind a context of 192 tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from build_scripts.driver import Driver, Lane
from engines.contract import Want
from engines.openvino import load, session
from tests.engines_built import default_engine

CONTEXT = 192
REPEATS = 8
SHAPES = (
    *((decodes, 0) for decodes in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)),
    *((0, chunk) for chunk in (16, 64, 128, 256, 512)),
    *((16, chunk) for chunk in (32, 128)),
)
"""(sequences that decode, tokens of one prompt beside them)"""
FORMS = {"narrow": sys.maxsize, "wide": 0}
"""WIDE_FROM that makes every step run in the form."""


@contextmanager
def all_steps_in(form: str) -> Iterator[None]:
    before, session.WIDE_FROM = session.WIDE_FROM, FORMS[form]
    try:
        yield
    finally:
        session.WIDE_FROM = before


class Bench:
    """Runs steps of a shape over one computed context, which every sequence shares and none changes but for its last token."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._context = driver.lane([5 + index for index in range(CONTEXT)], CONTEXT)
        driver.step([(self._context, CONTEXT, None)])

    def seconds(self, decodes: int, chunk: int) -> float:
        continued = [self._lane(CONTEXT + 1, CONTEXT) for _ in range(decodes)]
        work: list[tuple[Lane, int, Want]] = [self._driver.greedy(lane, 1) for lane in continued]
        begun = [self._lane(chunk, 0)] if chunk else []
        work += [(lane, chunk, None) for lane in begun]
        _, seconds = self._driver.timed_step(work)
        self._driver.release(continued, shared=len(self._context.blocks))
        self._driver.release(begun)
        return seconds

    def _lane(self, tokens: int, computed: int) -> Lane:
        lane = self._driver.lane(
            [7 + index for index in range(tokens)], tokens, self._context.blocks if computed else None
        )
        lane.computed = computed
        return lane


def main(arguments: Sequence[str]) -> None:
    engine = Path(arguments[0]) if arguments else default_engine()
    # The narrow form has room for few tokens: here both get room for all.
    session.WIDE_FROM = 1 + max(decodes + chunk for decodes, chunk in SHAPES)
    runner = load(engine, kv_blocks=200)
    if not runner.manifest.numerics.wide_weights:
        sys.exit(f"{engine} holds one form of its weights: nothing to compare")
    bench = Bench(Driver(runner))
    print("decodes  prompt   narrow     wide  wide / narrow")
    for decodes, chunk in SHAPES:
        best = dict.fromkeys(FORMS, float("inf"))
        for _ in range(REPEATS):
            for form in FORMS:
                with all_steps_in(form):
                    best[form] = min(best[form], bench.seconds(decodes, chunk))
        narrow, wide = best["narrow"] * 1e3, best["wide"] * 1e3
        print(f"{decodes:7d} {chunk:7d} {narrow:8.1f} {wide:8.1f} {wide / narrow:9.2f}", flush=True)
    runner.close()


if __name__ == "__main__":
    main(sys.argv[1:])
