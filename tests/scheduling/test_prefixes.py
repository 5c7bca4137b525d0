"""What operators do to the cache: pins hold and end, nothing tells tokens, and no pin can stop the traffic."""

from __future__ import annotations

import pytest

from server.cache_tasks import CachedPrefix, ClearCache, Cleared, ListPrefixes, PinPrefix, PinPrompt, UnpinPrefix
from server.errors import InvalidRequestError, OverloadedError, PreconditionError
from server.scheduling.prefixes import Prefixes
from tests.scheduling.world import World, make_request

STEM = [11, 12, 13, 14, 15, 16, 17, 18]


def filled(blocks: int = 24, max_context: int = 40) -> World:
    """A world that has computed STEM and forgotten nothing yet."""
    world = World(blocks=blocks, max_context=max_context)
    world.add(make_request(1, [*STEM, 20], 1))
    world.run()
    return world


def flood(world: World, first: int = 100) -> None:
    """Enough other prompts to evict all that can be evicted."""
    for number in range(first, first + 12):
        world.add(make_request(number, [number] * 12, 1))
    world.run()


def perform(world: World, task: PinPrompt | PinPrefix | ListPrefixes | ClearCache | UnpinPrefix) -> object:
    answer = world.batcher.prefixes.perform(task, world.now)
    world.batcher.check_integrity()
    return answer


def cached_tokens(world: World, number: int) -> int:
    world.add(make_request(number, [*STEM, 99], 1))
    world.run()
    return world.ends[number].cached_tokens


def test_a_pinned_prefix_outlives_a_flood_that_evicts_others() -> None:
    world, other = filled(), filled()
    pinned = perform(world, PinPrompt((*STEM, 20), b"", 1e6))
    assert isinstance(pinned, CachedPrefix)
    assert (pinned.tokens, pinned.blocks, pinned.in_use, pinned.pinned_for) == (8, 2, True, 1e6)
    assert pinned.size == 2 * world.runner.limits.bytes_per_block
    for each in (world, other):
        flood(each)
    assert (cached_tokens(world, 2), cached_tokens(other, 2)) == (8, 0)
    assert world.batcher.stats().blocks_pinned == 2


def test_a_pin_ends_with_its_time_and_pinning_again_moves_the_end() -> None:
    world = filled()
    perform(world, PinPrompt(tuple(STEM), b"", 3.0))
    world.now += 2.0
    (listed,) = [each for each in _list(world) if each.pinned_for]
    assert listed.pinned_for == 1.0
    perform(world, PinPrefix(listed.name, 3.0))
    world.now += 2.0
    assert [each.pinned_for for each in _list(world) if each.pinned_for] == [1.0]
    world.now += 1.0
    assert not [each for each in _list(world) if each.pinned_for]
    flood(world)
    assert cached_tokens(world, 2) == 0


def test_unpin_gives_back_what_no_other_pin_holds() -> None:
    world = filled()
    world.add(make_request(2, [*STEM, 30, 31, 32, 33, 34], 1))
    world.run()
    short = perform(world, PinPrompt(tuple(STEM), b"", 1e6))
    long = perform(world, PinPrompt((*STEM, 30, 31, 32, 33), b"", 1e6))
    assert isinstance(short, CachedPrefix)
    assert isinstance(long, CachedPrefix)
    assert world.batcher.prefixes.pinned == 3
    assert perform(world, UnpinPrefix(long.name)) is True
    assert perform(world, UnpinPrefix(long.name)) is False
    assert world.batcher.prefixes.pinned == 2
    flood(world)
    assert cached_tokens(world, 3) == 8


def test_a_pin_needs_the_right_salt_and_a_whole_block_that_is_there() -> None:
    world = filled()
    with pytest.raises(PreconditionError, match="0 of its 2 blocks are cached"):
        perform(world, PinPrompt(tuple(STEM), b"other", 1.0))
    with pytest.raises(InvalidRequestError, match="at least 4 tokens to fill a block, it has 3"):
        perform(world, PinPrompt((1, 2, 3), b"", 1.0))
    with pytest.raises(PreconditionError, match="nothing is cached under 00"):
        perform(world, PinPrefix(bytes(32), 1.0))


def test_pins_leave_room_for_the_longest_sequence() -> None:
    world = World(blocks=14, max_context=40)
    for number in range(1, 5):
        world.add(make_request(number, [number] * 8, 1))
        world.run()
    for number in (1, 2):
        perform(world, PinPrompt((number,) * 8, b"", 1e6))
    with pytest.raises(OverloadedError, match="4 at most"):
        perform(world, PinPrompt((4,) * 8, b"", 1e6))
    world.add(make_request(9, [9] * 30, 10, end_ids=()))
    world.run()
    assert len(world.output[9]) == 10


@pytest.mark.parametrize(("promised", "fits"), [(22, True), (23, False)])
def test_a_pin_does_not_take_what_seated_prompts_were_promised(promised: int, fits: bool) -> None:
    """24 blocks are free or cached; pinning makes two of the cached ones unavailable."""
    world = filled(blocks=24)
    limits = world.runner.limits
    prefixes = Prefixes(world.batcher.cache, limits, fingerprint="test", promised=lambda: promised)
    if fits:
        prefixes.perform(PinPrompt(tuple(STEM), b"", 1.0), 0.0)
        assert prefixes.pinned == 2
    else:
        with pytest.raises(OverloadedError, match="running requests need the blocks now"):
            prefixes.perform(PinPrompt(tuple(STEM), b"", 1.0), 0.0)
    prefixes.perform(ClearCache(pins=True), 0.0)
    world.batcher.check_integrity()


def test_the_list_shows_what_is_shared_most_and_no_tokens() -> None:
    world = World()
    for number in range(1, 6):
        world.add(make_request(number, [*STEM, *[50 + number] * 4, 9], 1))
        world.run()
    world.add(make_request(9, [70] * 9, 1))
    world.run()
    listed = _list(world)
    assert (listed[0].tokens, listed[0].reuses) == (8, 4), "where the prompts part"
    assert sorted((each.tokens, each.reuses) for each in listed[1:]) == [(8, 0), *[(12, 0)] * 5]
    assert _list(world, 2) == listed[:2]


@pytest.mark.parametrize(("pins", "found"), [(False, 8), (True, 0)])
def test_clear_forgets_what_nobody_holds_and_pins_only_where_asked(pins: bool, found: int) -> None:
    world = filled()
    flood(world)
    world.add(make_request(2, [*STEM, 20], 1))
    world.run()
    perform(world, PinPrompt(tuple(STEM), b"", 1e6))
    cached = world.batcher.cache.cached
    answer = perform(world, ClearCache(pins))
    assert answer == (Cleared(cached + 2, 0) if pins else Cleared(cached, 2))
    assert cached_tokens(world, 3) == found


def _list(world: World, count: int = 100) -> list[CachedPrefix]:
    answer = perform(world, ListPrefixes(count))
    assert isinstance(answer, list)
    return answer
