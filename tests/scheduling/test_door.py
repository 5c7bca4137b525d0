"""When new requests are let in: the batching window, and static batches for comparison."""

from __future__ import annotations

from dataclasses import replace

from server.scheduling.door import BatchingWindow, StaticBatches
from server.scheduling.policies import Policies
from tests.scheduling.world import CONFIG, World, make_request


def decoding_world(**policies: object) -> World:
    """Request 0 streams and does not end by itself."""
    world = World(policies=Policies(**policies))  # type: ignore[arg-type]
    world.add(make_request(0, [3, 4, 5], 40, end_ids=()))
    world.step()
    return world


def planned(world: World) -> int:
    return len(world.plans[-1].opened)


def test_the_window_holds_a_prompt_back_while_others_stream_and_never_longer_than_it_says() -> None:
    world = decoding_world(door=BatchingWindow(size=3, wait=2.5))
    world.add(make_request(1, [6, 7, 8], 4, arrival=world.now))
    opened = []
    for _ in range(5):
        world.step()
        opened.append(planned(world))
    assert opened == [0, 0, 0, 1, 0], "steps take a second: it enters with the first that starts 2.5 s later"


def test_the_window_closes_early_once_the_batch_is_full() -> None:
    world = decoding_world(door=BatchingWindow(size=2, wait=1000.0))
    world.add(make_request(1, [6, 7, 8], 4, arrival=world.now))
    world.step()
    assert planned(world) == 0
    world.add(make_request(2, [8, 7, 6], 4, arrival=world.now))
    world.step()
    assert planned(world) == 2


def test_an_idle_engine_takes_whoever_comes() -> None:
    world = World(policies=Policies(door=BatchingWindow(size=9, wait=1000.0)))
    world.add(make_request(1, [6, 7, 8], 4))
    world.step()
    assert planned(world) == 1


def test_the_window_is_set_by_the_configuration() -> None:
    world = World(config=replace(CONFIG, batch_wait=1000.0, batch_size=2))
    for number in range(2):
        world.add(make_request(number, [3 + number, 4, 5], 40, end_ids=()))
        world.step()
    assert planned(world) == 0
    world.add(make_request(2, [9, 9], 1))
    world.step()
    assert planned(world) == 2


def test_a_static_batch_is_seated_whole_and_the_next_when_its_last_is_over() -> None:
    world = World(config=replace(CONFIG, max_sequences=2), policies=Policies(door=StaticBatches()))
    for number, tokens in enumerate((2, 6, 3, 3)):
        world.add(make_request(number, [3 + number, 4, 5], tokens, end_ids=()))
    world.run()
    seated = [[spec.sequence - 1 for spec in plan.opened] for plan in world.plans if plan.opened]
    assert seated == [[0, 1], [2, 3]]
    first_of_second = next(index for index, plan in enumerate(world.plans) if len(plan.opened) and index)
    assert first_of_second == 6, "request 1 draws six tokens, alone at the end"
