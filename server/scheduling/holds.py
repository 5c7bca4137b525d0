"""Who holds which block: the law that ties the pool to its users."""

from __future__ import annotations

from server.kv.block_pool import IntegrityError
from server.kv.prefix_cache import PrefixCache
from server.scheduling.composition import Composition
from server.scheduling.prefixes import Prefixes
from server.scheduling.seats import Seats


def check_holds(cache: PrefixCache, seats: Seats, flight: Composition | None, prefixes: Prefixes) -> None:
    """Every reference in the pool is a seated sequence's, a planned copy's or a pin's, and no other exists. Raises IntegrityError."""
    held = [0] * cache.pool.count
    for sequence in seats.running.values():
        for block in sequence.kv.table:
            held[block] += 1
    for block in flight.held if flight is not None else ():
        held[block] += 1
    for block in prefixes.holds():
        held[block] += 1
    refs = cache.pool.refs.tolist()
    if refs != held:
        wrong = [(block, refs[block], count) for block, count in enumerate(held) if refs[block] != count]
        raise IntegrityError(f"(block, references, holders): {wrong[:8]}")
