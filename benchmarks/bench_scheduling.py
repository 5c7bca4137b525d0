"""What each scheduling policy is held to: ``python -m benchmarks.figures --only scheduling``.

Everything but the hour's figure runs in virtual time, so the machine's load changes nothing: profile h100-8b-tp1 (an estimate), the
scenes of scheduling_scenes.py, seed 7. docs/scheduling.md explains each policy and shows it on and off. The traces are not part of the
project; a figure that needs one and finds none does not hold, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from benchmarks.figure import Figure, at_least, at_most
from benchmarks.scheduling_capacity import admission, batching, budget, forecast, hour
from benchmarks.scheduling_fairness import backlogged, classes, flood_of_interactive, long_prompt, tenants
from benchmarks.scheduling_scenes import required
from loadtest.simulation.cache_replay import hit_rate, unique_blocks
from loadtest.traces import read_trace
from server.kv.eviction import LeastRecentlyUsed, ReusedStayLonger

LRU_MEASURED = {
    "mooncake_conversation.jsonl": (7.9, 19.6, 27.9, 35.4),
    "mooncake_synthetic.jsonl": (7.8, 15.7, 26.2, 44.4),
}
"""Per cent of blocks at 2, 5, 10 and 25 % of the unique blocks: what others measured on the same traces."""
SIZES = (2, 5, 10, 25)


def figures() -> list[Figure]:
    parts: list[Callable[[], Iterable[Figure]]] = [
        long_prompt,
        classes,
        flood_of_interactive,
        admission,
        batching,
        budget,
        forecast,
        tenants,
        backlogged,
        eviction,
        hour,
    ]
    found: list[Figure] = []
    for part in parts:
        try:
            found += part()
        except FileNotFoundError as error:
            found.append(Figure(f"scheduling, {part.__name__}", "measured", str(error), holds=False))
    return found


def eviction() -> Iterator[Figure]:
    """LRU first, to see that we measure what others did; then ours."""
    gains = []
    for name, measured in LRU_MEASURED.items():
        trace = read_trace(required(name))
        for percent, expected in zip(SIZES, measured, strict=True):
            capacity = unique_blocks(trace) * percent // 100
            lru, ours = (100 * hit_rate(trace, capacity, policy) for policy in (LeastRecentlyUsed, ReusedStayLonger))
            point = f"{name.partition('.')[0]} at {percent} %"
            yield at_most(f"LRU reproduced, {point}: off by", 0.1, abs(lru - expected), "points")
            gains.append(ours - lru)
    yield at_least("hit rate against LRU: points that are better", 6, sum(gain > 0 for gain in gains), "of 8")
    yield at_least("hit rate against LRU: worst difference", 0.0, min(gains), "points")
