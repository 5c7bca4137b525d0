"""The eviction rules on what their parameters were not chosen on: ``LOAD_TRACES=DIR python -m benchmarks.eviction_held_out``.

The parameters of the rules were chosen on eight points: both Mooncake traces, whole, at 2, 5, 10 and 25 % of their unique
blocks. Here are the other capacities, and each half of each trace as a trace of its own. Beside the hit rate stands the share of the
computation that was saved, where a block costs more the deeper it stands: its attention looks at all before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import mean

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.scheduling_scenes import TRACES, required
from loadtest.simulation.cache_replay import ATTENTION, Saved, saved, unique_blocks
from loadtest.traces import Trace, read_trace
from server.kv.eviction import CostlyStayLonger, EvictionPolicy, LeastRecentlyUsed, ReusedStayLonger

CHOSEN_ON = (2, 5, 10, 25)
"""Per cent of the unique blocks of the whole traces."""
CAPACITIES = (1, 2, 3, 5, 7, 10, 15, 20, 25, 35, 50)
POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    "reuse": ReusedStayLonger,
    "cost": lambda: CostlyStayLonger(ATTENTION),
}
FEWEST = 200
"""Blocks: a smaller pool would not hold one long prompt."""


class Point(msgspec.Struct, frozen=True):
    part: str
    percent: int
    lru: Saved
    ours: dict[str, Saved]
    """By rule."""


def points() -> Iterator[Point]:
    """Every trace, part and capacity that is held out. Raises FileNotFoundError."""
    for name in TRACES[2:]:
        whole = read_trace(required(name))
        for part, trace in parts(whole):
            blocks = unique_blocks(trace)
            for percent in CAPACITIES:
                capacity = max(FEWEST, blocks * percent // 100)
                held_out = trace is not whole or percent not in CHOSEN_ON
                if held_out:
                    lru = saved(trace, capacity, LeastRecentlyUsed)
                    ours = {name: saved(trace, capacity, rule) for name, rule in POLICIES.items()}
                    yield Point(f"{whole.name} {part}", percent, lru, ours)


def parts(trace: Trace) -> Iterator[tuple[str, Trace]]:
    middle = len(trace.rows) // 2
    yield "whole", trace
    yield "first half", msgspec.structs.replace(trace, rows=trace.rows[:middle])
    yield "second half", msgspec.structs.replace(trace, rows=trace.rows[middle:])


def main() -> None:
    console = Console()
    found = list(points())
    for name in POLICIES:
        _tell(console, name, found)


def _tell(console: Console, name: str, held_out: list[Point]) -> None:
    table = Table("trace", "pool, %", "LRU hits, %", "hits against it", "computation saved against it", title=name)
    gains = [
        (100 * (each.ours[name].blocks - each.lru.blocks), 100 * (each.ours[name].work - each.lru.work))
        for each in held_out
    ]
    for each, (hits, work) in zip(held_out, gains, strict=True):
        table.add_row(each.part, str(each.percent), f"{100 * each.lru.blocks:.2f}", f"{hits:+.3f}", f"{work:+.3f}")
    console.print(table)
    for what, column in zip(("hits", "computation saved"), zip(*gains, strict=True), strict=True):
        better, worse = sum(gain > 1e-9 for gain in column), sum(gain < -1e-9 for gain in column)
        console.print(
            f"{name}, {what}: {better} of {len(column)} points better than LRU, {worse} worse; "
            f"mean {mean(column):+.3f}, worst {min(column):+.3f} percentage points"
        )


if __name__ == "__main__":
    main()
