"""How a step is composed: who, how much, in which order, and what of it is prepared ahead."""

from __future__ import annotations

from dataclasses import replace

from engines.contract import Sample, StepPlan
from server.engine import PriorityClass
from server.scheduling.budget import TokenAllowance
from server.scheduling.config import BatcherConfig
from server.scheduling.policies import Policies
from server.scheduling.sequence import Sequence
from tests.scheduling.world import CONFIG, World, alone, make_request

Shape = list[tuple[int, int, int, bool]]


def shape(plan: StepPlan | None) -> Shape:
    """(sequence, past, new tokens, draws) of each row."""
    assert plan is not None
    return [
        (row.sequence, row.past, 1 if row.tokens is None else len(row.tokens), row.want is not None)
        for row in plan.rows
    ]


def make_world(**changes: float) -> World:
    return World(config=replace(CONFIG, **changes))  # type: ignore[arg-type]


def test_decodes_come_first_and_prompts_share_what_is_left_case_C1_C7() -> None:
    world = make_world(step_tokens=8)
    for number in (1, 2):
        world.add(make_request(number, [number] * 3, 9, end_ids=()))
    assert shape(world.step()) == [(1, 0, 3, True), (2, 0, 3, True)]
    world.add(make_request(3, [3] * 14, 9))
    assert shape(world.step()) == [(1, 3, 1, True), (2, 3, 1, True), (3, 0, 6, False)]
    assert shape(world.step()) == [(1, 4, 1, True), (2, 4, 1, True), (3, 6, 6, False)]
    assert shape(world.step()) == [(1, 5, 1, True), (2, 5, 1, True), (3, 12, 2, True)]


def test_a_decode_row_carries_no_token_and_draws_one() -> None:
    world = World()
    world.add(make_request(1, [5] * 3, 9, end_ids=()))
    world.step()
    plan = world.step()
    assert plan is not None
    assert (plan.rows[0].tokens, plan.rows[0].want) == (None, Sample(1))


def test_the_floor_lets_prompts_progress_beside_as_many_decodes_as_seats() -> None:
    world = make_world(step_tokens=4, min_prefill_tokens=2, max_sequences=5)
    for number in range(4):
        world.add(make_request(number, [9 + number], 30, end_ids=()))
    world.step()
    world.add(make_request(9, [3] * 5, 3))
    assert shape(world.step())[4:] == [(5, 0, 2, False)]
    assert shape(world.step())[4:] == [(5, 2, 2, False)]
    assert shape(world.step())[4:] == [(5, 4, 1, True)]


def test_an_interactive_prompt_goes_before_a_batch_prompt_in_progress_case_E1() -> None:
    world = make_world(step_tokens=8)
    world.add(make_request(1, [1] * 20, 2, priority=PriorityClass.BATCH))
    assert shape(world.step()) == [(1, 0, 8, False)]
    world.add(make_request(2, [2] * 6, 2, priority=PriorityClass.INTERACTIVE))
    assert shape(world.step()) == [(2, 0, 6, True), (1, 8, 2, False)]


def test_classes_are_seated_in_their_order_and_first_come_first_served_within() -> None:
    world = make_world(max_sequences=1, standard_share=0.0, batch_share=0.0)
    for number, priority in enumerate((2, 1, 0, 1, 0)):
        world.add(make_request(number, [9] * 3, 1, priority=PriorityClass(priority)))
    world.run()
    assert [plan.opened[0].sequence - 1 for plan in world.plans] == [2, 4, 1, 3, 0]


def test_a_long_prompt_takes_its_share_while_others_wait_and_the_rest_when_nobody_wants_it_case_C1() -> None:
    world = make_world(step_tokens=16, max_partial_prefills=4, long_prompt_tokens=20)
    world.add(make_request(1, [1] * 50, 2))
    assert shape(world.step()) == [(1, 0, 16, False)], "alone it takes all"
    world.add(make_request(2, [2] * 7, 2))
    assert shape(world.step()) == [(1, 16, 4 + 5, False), (2, 0, 7, True)], "its share, and what the short one leaves"
    assert shape(world.step()) == [(2, 7, 1, True), (1, 25, 15, False)]


def test_at_most_so_many_unfinished_prompts_share_a_step() -> None:
    world = make_world(step_tokens=16, max_partial_prefills=2, long_prompt_tokens=4)
    for number in range(4):
        world.add(make_request(number, [9 + number] * 20, 2))
    assert shape(world.step()) == [(1, 0, 8, False), (2, 0, 8, False)]
    assert world.batcher.running == 2


def test_short_prompts_in_one_step_are_not_limited_by_the_partial_ones() -> None:
    world = make_world(step_tokens=40, max_partial_prefills=1)
    for number in range(6):
        world.add(make_request(number, [9 + number] * 4, 2))
    assert len(shape(world.step())) == 6


def test_preparing_ahead_changes_no_output_and_no_step() -> None:
    worlds = [World(blocks=64, max_context=32, draft=ahead) for ahead in (False, True)]
    for world in worlds:
        for number in range(8):
            world.add(make_request(number, [5, 6, 7 + number % 2] * (1 + number), 6))
        world.run()
    assert list(map(shape, worlds[0].plans)) == list(map(shape, worlds[1].plans))
    assert worlds[0].output == worlds[1].output


def test_a_budget_is_a_replaceable_object() -> None:
    class Stingy:
        def allowance(self, decodes: int, context: int, prompts: int, tokens: int) -> TokenAllowance:
            return TokenAllowance(5 if decodes else 2)

    world = World(policies=Policies(budget=Stingy()))
    world.add(make_request(1, [5] * 3, 5, end_ids=()))
    world.step()
    world.step()
    world.add(make_request(2, [6] * 9, 5, end_ids=()))
    assert shape(world.step())[1:] == [(2, 0, 5, False)]


def test_an_order_is_a_replaceable_object_asked_once_for_each_request() -> None:
    asked: list[int] = []

    class ShortestFirst:
        def rank(self, request: object, uncached: int, expected: float) -> float:
            asked.append(request.id)  # type: ignore[attr-defined]
            return len(request.prompt)  # type: ignore[attr-defined]

    world = World(config=replace(CONFIG, max_sequences=1), policies=Policies(order=ShortestFirst()))
    for number, length in enumerate((9, 3, 6)):
        world.add(make_request(number, [5 + number] * length, 3))
    world.run()
    assert asked == [0, 1, 2]
    assert [spec.sequence - 1 for plan in world.plans for spec in plan.opened] == [1, 2, 0]


# ---------------------------------------------------------------------- seating and preemption


def test_nobody_holds_blocks_before_being_seated() -> None:
    world = make_world(max_sequences=1)
    for number in range(5):
        world.add(make_request(number, [9 + number] * 8, 9, end_ids=()))
    world.step()
    assert world.batcher.stats().blocks_in_use == 3, "two for the first prompt, one prepared for its next token"
    assert world.batcher.stats().waiting_by_class == (0, 4, 0)


def test_seats_are_bounded() -> None:
    world = make_world(max_sequences=3)
    for number in range(5):
        world.add(make_request(number, [9 + number], 9, end_ids=()))
    for _ in range(5):
        plan = world.step()
        assert plan is not None
        assert len(plan.rows) <= 3


def test_a_prompt_is_seated_only_when_all_of_it_fits_above_the_watermark() -> None:
    world = World(blocks=16, max_context=64, config=replace(CONFIG, watermark=0.125))
    world.add(make_request(1, [1] * 20, 9, end_ids=()))
    world.step()
    world.step()
    # 16 blocks: 6 in use, 2 must stay, so 8 blocks may be promised: 33 tokens need 9.
    world.add(make_request(2, [2] * 33, 2))
    world.add(make_request(3, [3] * 4, 2))
    plan = world.step()
    assert [row.sequence for row in plan.rows] == [1] if plan else False
    assert world.batcher.stats().waiting_by_class == (0, 2, 0), "who is next is not overtaken by who is smaller"


def test_what_seated_prompts_still_need_is_not_promised_again() -> None:
    world = World(blocks=16, max_context=64, config=replace(CONFIG, step_tokens=8, watermark=0.0))
    world.add(make_request(1, [1] * 40, 2))
    world.step()
    # 2 blocks in use, 8 more promised to the first: 6 are left.
    world.add(make_request(2, [2] * 25, 2, priority=PriorityClass.INTERACTIVE))
    world.step()
    assert world.batcher.running == 1
    world.batcher.cancel(2)
    world.add(make_request(3, [3] * 24, 2, priority=PriorityClass.INTERACTIVE))
    world.step()
    assert world.batcher.running == 2


def storm(**changes: float) -> World:
    """More output than the pool can hold at once: 10 blocks, three sequences of up to 8 each."""
    world = World(blocks=10, max_context=32, config=replace(CONFIG, **changes))  # type: ignore[arg-type]
    for number in range(3):
        world.add(make_request(number, [9 + number] * 8, 24, end_ids=(), priority=PriorityClass(2 - number)))
    return world


def test_case_E4_E7_preemption_takes_the_lowest_class_newest_first_and_changes_no_output() -> None:
    world = storm()
    world.run()
    for number in range(3):
        assert world.output[number] == alone(make_request(number, [9 + number] * 8, 24, end_ids=()))
    preemptions = [world.ends[number].preemptions for number in range(3)]
    assert preemptions[2] == 0, "the first of the highest class is never preempted"
    assert preemptions[0] >= preemptions[1]
    assert preemptions[0] > 0
    assert world.batcher.stats().preemptions == sum(preemptions)
    assert sorted(world.ends, key=lambda request: world.ends[request].timings.total) == [2, 1, 0]


def test_a_preempted_sequence_finds_its_full_blocks_again() -> None:
    world = storm()
    while not world.batcher.stats().preemptions:
        world.step()
    computed = world.batcher.stats().computed_tokens
    world.run()
    recomputed = world.batcher.stats().computed_tokens - computed
    left = 3 * (8 + 24 - 1) - computed
    assert recomputed < left + 8 * 6, "most of what a preemption lost came from the cache"
    assert world.ends[0].cached_tokens == 0, "cached tokens are those of the first seating"


def test_a_preempted_request_keeps_its_place_before_those_who_came_later() -> None:
    world = World(blocks=8, max_context=32, config=replace(CONFIG, watermark=0.0))
    for number in (1, 2):
        world.add(make_request(number, [number] * 8, 20, end_ids=()))
    while not world.batcher.stats().preemptions:
        world.step()
    world.add(make_request(3, [3], 2))
    world.run()
    starts = [(at, row.sequence) for at, plan in enumerate(world.plans) for row in plan.rows if row.tokens is not None]
    resumed = max(at for at, sequence in starts if sequence == 2)
    came_later = min(at for at, sequence in starts if sequence == 3)
    assert 1 < resumed <= came_later


def test_a_victim_policy_is_a_replaceable_object() -> None:
    chosen: list[int] = []

    class Logged:
        def choose(self, seated: object) -> Sequence:
            victim = max(seated, key=lambda sequence: sequence.key)  # type: ignore[call-overload]
            chosen.append(victim.id)
            return victim  # type: ignore[no-any-return]

    world = World(blocks=8, max_context=32, policies=Policies(victims=Logged()))
    for number in (1, 2):
        world.add(make_request(number, [number] * 8, 20, end_ids=()))
    world.run()
    assert chosen
    assert set(chosen) == {2}


def test_two_prompts_that_fill_the_pool_between_them_still_finish() -> None:
    """No decode runs and neither prompt can go on: the later gives way."""
    world = World(blocks=8, max_context=32, config=replace(CONFIG, step_tokens=8, watermark=0.0, long_prompt_tokens=0))
    one, two = [make_request(number, [number] * 16, 16, end_ids=()) for number in (1, 2)]
    world.add(one)
    world.add(two)
    world.run()
    assert world.output[1] == alone(one)
    assert world.output[2] == alone(two)


def test_the_smallest_pool_serves_any_queue() -> None:
    world = World(blocks=4, max_context=16, config=BatcherConfig(max_sequences=8, step_tokens=4, min_prefill_tokens=1))
    requests = [make_request(number, [9 + number] * (1 + number % 15), 16 - (1 + number % 15)) for number in range(30)]
    for request in requests:
        world.add(request)
    world.run()
    assert all(world.output[request.id] == alone(request) for request in requests)


def test_a_flood_s_older_keys_do_not_overtake_another_tenant_s_seated_prompt_case_E11() -> None:
    for fair, first in ((True, 3), (False, 2)):
        world = make_world(step_tokens=4, max_sequences=2, fair_tenants=fair)
        world.add(make_request(1, [1] * 3, 20, tenant="flood", end_ids=()))
        world.step()
        world.add(make_request(3, [3] * 9, 2, tenant="quiet"))
        world.step()
        # Handed in late, yet with the older key: the room would take it before.
        late = make_request(2, [2] * 3, 2, tenant="flood", arrival=-1.0)
        world.batcher.add(late, world.now)
        sequence = world.batcher._ledger.records[2].sequences[0]
        world.batcher._room.remove(sequence)
        sequence.key = (1, 0.0, 0, 0)
        world.batcher._room.push(sequence)
        head, seated = sequence, next(iter(world.batcher._seats.prefilling.values()))
        assert seated.request == 3
        assert world.batcher._seating._overtakes(head, seated) is (first == 2)
