"""Predicted first tokens: right where the model says all, learned where it does not, and refused only for the client's own deadlines."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from engines.manifest import StepProfile
from server.engine import FinishReason, GenerationRequest, PriorityClass, RequestFinished, Timings
from server.errors import OverloadedError
from server.scheduling.config import BatcherConfig
from server.scheduling.cost import StepCost
from server.scheduling.forecast import Forecast, House
from server.scheduling.making import make_reception, make_room
from server.scheduling.outlook import Outlook, Prefilling, Streaming
from server.scheduling.policies import Policies
from server.scheduling.shares import ClassShares
from server.scheduling.waiting_room import WaitingRoom
from tests.scheduling.guest import Guest
from tests.scheduling.world import make_request

PROFILE = StepProfile(
    fixed=0.01,
    per_new_token=0.001,
    per_decode=0.001,
    per_decode_context=0.0,
    per_attention=0.0,
    machine="",
    relative_error=0.0,
)
EMPTY = Outlook((0, 0, 0), 0, (), 0, 0, 0.0, 0.0, 128)
BLOCK = 10
NOBODY = (0, 0)
CONFIG = BatcherConfig(budget="adaptive", step_tokens=10_000, itl_target=0.05, itl_stretch=1.0, itl_limit=0.05)


def forecast(waiting: tuple[int, int] = NOBODY, config: BatcherConfig = CONFIG) -> Forecast:
    """``waiting``: requests that go before, and their tokens."""
    requests, work = waiting
    return judged([(0, 0.0, work // max(1, requests))] * requests, config)


def judged(
    waiting: list[tuple[int, float, int]],
    config: BatcherConfig = CONFIG,
    cost: StepCost | None = None,
    streams: Sequence[Streaming] = (),
    seen: int = 0,
) -> Forecast:
    """``seen``: answers; ``waiting``: class, rank and prompt tokens of each; blocks are of ten tokens."""
    cost = cost or StepCost(PROFILE)
    room: WaitingRoom[Guest] = make_room(config, ClassShares((0.0, 0.0, 0.0), bound=1))
    for number, (level, rank, work) in enumerate(waiting):
        room.push(Guest(level, rank, number, work=work, output=100_000))
    house = House(room.around, lambda: streams, lambda _, uncached: uncached, BLOCK)
    reception = make_reception(config, cost, Policies())
    for _ in range(seen):
        reception.learn(make_request(0, [3], 100_000), FinishReason.END, 100)
    return Forecast(config, cost, reception, house)


def predict(outlook: Outlook, tokens: int = 100, waiting: tuple[int, int] = NOBODY) -> float:
    return forecast(waiting).first_token(make_request(1, [3] * tokens), tokens, outlook, 0.0)


def ended(request: int, first_token: float | None) -> RequestFinished:
    return RequestFinished(request, FinishReason.END, 1, 0, Timings(0.0, first_token, first_token, 1.0))


def test_the_first_of_a_burst_is_told_of_the_rest() -> None:
    """Eight come at once, again and again, a second of work each: of the seven that come after it all pass who rank before it."""
    judge = forecast()

    def first_at(when: float) -> float:
        request = make_request(1, [3] * 1000, arrival=when)
        return judge.first_token(request, 1000, EMPTY, when)

    unknown = first_at(0.0)
    for when in range(0, 900, 100):
        for _ in range(8):
            judge.arrived(make_request(0, [3] * 1000, arrival=when), 1000, float(when))
    assert first_at(900.0) - unknown > 7.0


def test_an_empty_engine_takes_one_step() -> None:
    assert predict(EMPTY) == pytest.approx(0.01 + 100 * 0.001)


def test_beside_streams_a_prompt_takes_the_steps_that_their_gap_allows() -> None:
    # A step without prompts takes 0.02 s and may take 0.05 s: 0.1 s of prompt need four.
    assert predict(EMPTY._replace(decodes=10)) == pytest.approx(0.1 + 4 * 0.02)


def test_a_step_that_is_slow_without_prompts_still_gives_them_a_few_tokens() -> None:
    config = replace(CONFIG, itl_target=0.01, itl_limit=0.01, min_prefill_tokens=16)
    found = judged([], config).first_token(make_request(1, [3] * 100), 100, EMPTY._replace(decodes=10), 0.0)
    assert found == pytest.approx(0.1 + 7 * 0.02)  # 100 tokens, 16 a step


def test_the_rest_of_the_step_under_way_counts() -> None:
    request, empty = make_request(1, [3] * 100), predict(EMPTY)
    for now, rest in ((6.0, 0.4), (6.1, 0.3), (6.4, 0.0), (9.0, 0.0)):
        under_way = EMPTY._replace(step_seconds=0.4, step_ends=6.4)
        assert forecast().first_token(request, 100, under_way, now) - empty == pytest.approx(rest)


def test_only_who_goes_before_by_class_and_rank_counts() -> None:
    request = make_request(1, [3] * 100, 10, priority=PriorityClass.STANDARD, arrival=7.0)
    rank = 7.0 + CONFIG.standard_target + CONFIG.length_weight * (100 * 0.001 + 10 * 0.001)

    def predicted(level: int, at: float) -> float:
        return judged([(level, at, 1000)] * 9).first_token(request, 100, EMPTY, 0.0)

    assert min(predicted(1, rank - 0.1), predicted(0, 1e9)) > 9.0
    # Those behind fill the step up: its token comes at the end of that.
    assert predicted(1, rank + 0.1) == predicted(2, 0.0) == pytest.approx(CONFIG.idle_step + 0.01)


def test_prompts_in_progress_that_it_passes_are_not_ahead() -> None:
    def busy(level: int, rank: float) -> Outlook:
        return EMPTY._replace(prefilling_tokens=2000, prefilling=(Prefilling(level, rank, 2000, 0),))

    standard = int(PriorityClass.STANDARD)
    assert predict(busy(standard, -1.0)) > 2.0
    assert predict(busy(standard, 1e9)) == predict(busy(standard + 1, -1.0)) == pytest.approx(CONFIG.idle_step + 0.01)


def test_a_long_prompt_ahead_takes_only_its_part_of_the_steps() -> None:
    long = EMPTY._replace(decodes=10, prefilling_tokens=9000, prefilling=(Prefilling(0, 0.0, 9000, 0),))
    # Of each step's 0.03 s for prompts it leaves three quarters: 0.1 s take 0.1333 s, five steps of 0.05 s.
    assert predict(long) == pytest.approx(5 * 0.05)
    alone = judged([], replace(CONFIG, max_partial_prefills=1))
    assert alone.first_token(make_request(1, [3] * 100), 100, long, 0.0) > 9.0


def test_work_of_unequal_prompts_is_not_that_of_their_mean() -> None:
    profile = msgspec.structs.replace(PROFILE, per_attention=1e-6)
    cost = StepCost(profile)

    def predicted(*lengths: int) -> float:
        config = replace(CONFIG, long_prompt_tokens=100_000)
        judge = judged([(0, float(at), length) for at, length in enumerate(lengths)], config, cost)
        return judge.first_token(make_request(1, [3]), 1, EMPTY, 0.0)

    assert predicted(1000, 7000) > predicted(4000, 4000) + 0.9 * (50e6 - 32e6) / 2 * 1e-6


def test_of_a_prompt_not_read_yet_only_what_is_ahead_counts() -> None:
    judge = forecast(waiting=(9, 9000))
    busy = EMPTY._replace(waiting_requests=(0, 9, 0))
    # 9.001 s of prompts: a second of them in the first step, when nobody streams, the rest in 206 whose streams take 0.011 s each.
    late, in_time = (make_request(1, [3], ttft_deadline=seconds) for seconds in (11.27, 11.28))
    with pytest.raises(OverloadedError, match="ttft_deadline"):
        judge.check_shortest(late, busy, 0.0)
    judge.check_shortest(in_time, busy, 0.0)
    judge.check_shortest(late, EMPTY, 0.0)  # where nobody is ahead everybody is admitted


def test_of_a_prompt_not_read_yet_the_kinder_of_what_was_learned_of_short_and_long_ones_counts() -> None:
    judge = forecast(waiting=(9, 9000))
    busy = EMPTY._replace(waiting_requests=(0, 9, 0))
    request = make_request(1, [3], ttft_deadline=8.0)
    with pytest.raises(OverloadedError, match="ttft_deadline"):
        judge.check_shortest(request, busy, 0.0)
    expected = judge.first_token(make_request(0, [3] * 9000), 9000, busy, 0.0)
    for number in range(1, 40):  # long ones in a crowd take half of what the model says
        judge.first_token(make_request(number, [3] * 9000), 9000, busy, 0.0)
        judge.learn([ended(number, expected / 2)])
    judge.check_shortest(request, busy, 0.0)


def test_without_a_seat_it_waits_until_so_many_have_ended() -> None:
    full = EMPTY._replace(free_seats=0, waiting_requests=(0, 2, 0), decodes=4)
    request = make_request(1, [3] * 100)

    def predicted(*ends: float) -> float:
        judge = judged([(0, 0.0, 30)] * 2, streams=[Streaming(end, 1, 1) for end in ends], seen=9)
        return judge.first_token(request, 100, full, 0.0)

    # A step with four streams takes 0.014 s; the third to end leaves its seat to the newcomer.
    late, soon = predicted(10, 20, 1000, 9000), predicted(10, 20, 30, 9000)
    assert late == pytest.approx(1000 * 0.014, rel=0.05)
    assert soon == pytest.approx(30 * 0.014, rel=0.5)
    assert soon > 30 * 0.014


def test_without_blocks_it_waits_for_those_of_others_and_behind_whoever_waits_for_more() -> None:
    short = EMPTY._replace(free_blocks=20, decodes=2, waiting_requests=(0, 1, 0))
    request, fits = make_request(1, [3] * 400), make_request(2, [3] * 100)

    def predicted(judge: Forecast, request: GenerationRequest) -> float:
        return judge.first_token(request, len(request.prompt), short, 0.0)

    streams = [Streaming(500.0, 10, 1), Streaming(2000.0, 90, 1)]
    nobody_ahead = judged([], streams=streams, seen=9)
    assert predicted(nobody_ahead, fits) < 0.5  # ten blocks
    assert predicted(nobody_ahead, request) == pytest.approx(2000 * 0.012, rel=0.05)  # forty: thirty are not enough
    behind_another = judged([(0, 0.0, 800)], streams=streams, seen=9)
    assert predicted(behind_another, fits) == pytest.approx(2000 * 0.012, rel=0.1)


def test_before_any_answer_was_seen_nobody_is_refused_for_how_long_those_who_stream_might_go_on() -> None:
    full = EMPTY._replace(free_seats=0, waiting_requests=(0, 1, 0), decodes=8)
    request = make_request(1, [3] * 100, ttft_deadline=5.0)
    for seen in (0, 7):
        judge = judged([(0, 0.0, 30)], streams=[Streaming(100_000.0, 1, 1)] * 8, seen=seen)
        judge.check(request, 100, full, 0.0)
        # What it learns from is what it says, or the first outcomes would teach that the model is wrong.
        assert judge.first_token(request, 100, full, 0.0) > 1000.0
    with pytest.raises(OverloadedError, match="ttft_deadline"):
        judged([(0, 0.0, 30)], streams=[Streaming(100_000.0, 1, 1)] * 8, seen=8).check(request, 100, full, 0.0)


def test_who_streams_is_looked_up_once_for_each_picture() -> None:
    asked = 0

    def streams() -> list[Streaming]:
        nonlocal asked
        asked += 1
        return [Streaming(100.0, 50, 1)]

    judge = judged([], seen=9)
    judge._house = replace(judge._house, streams=streams)
    request = make_request(1, [3] * 400)
    for blocks in (10, 11):
        outlook = EMPTY._replace(free_blocks=blocks, decodes=1)
        for _ in range(3):
            judge.first_token(request, 400, outlook, 0.0)
    judge.first_token(request, 400, EMPTY, 0.0)  # room enough
    assert asked == 2


def test_what_the_model_leaves_out_is_learned_apart_for_an_empty_and_a_crowded_room() -> None:
    judge = forecast()
    crowded = EMPTY._replace(waiting_requests=(0, 1, 0))
    alone, among = (judge.first_token(make_request(0, [3] * 100), 100, each, 0.0) for each in (EMPTY, crowded))
    for number in range(1, 300):
        judge.first_token(make_request(number, [3] * 100), 100, EMPTY, 0.0)
        judge.learn([ended(number, 3 * alone)])
    assert judge.first_token(make_request(999, [3] * 100), 100, EMPTY, 0.0) == pytest.approx(3 * alone, rel=0.05)
    assert judge.first_token(make_request(998, [3] * 100), 100, crowded, 0.0) == pytest.approx(among)


def test_one_wild_outcome_teaches_little() -> None:
    judge = forecast()
    before = judge.first_token(make_request(1, [3] * 100), 100, EMPTY, 0.0)
    judge.learn([ended(1, 1e6)])
    assert judge.first_token(make_request(2, [3] * 100), 100, EMPTY, 0.0) < 1.2 * before


def refusals(judge: Forecast, *, deadline: float, most: int) -> int:
    """Of ``most`` requests one after the other, in a crowded room, before one is admitted."""
    crowded = EMPTY._replace(waiting_requests=(0, 1, 0))
    for number in range(most):
        try:
            judge.check(make_request(10_000 + number, [3] * 100, 1, ttft_deadline=deadline), 100, crowded, 0.0)
        except OverloadedError:
            continue
        return number
    return most


def after_standing_still() -> Forecast:
    """300 requests waited for their first token through a minute in which the machine stood still."""
    judge, crowded = forecast(), EMPTY._replace(waiting_requests=(0, 1, 0))
    for number in range(300):
        judge.first_token(make_request(number, [3] * 100), 100, crowded, 0.0)
    for number in range(300):
        judge.learn([ended(number, 60.0)])
    return judge


def test_a_time_of_standstill_does_not_refuse_everybody_for_ever() -> None:
    assert 32 <= refusals(after_standing_still(), deadline=2.0, most=1_000) < 200


def test_one_admitted_again_shows_that_the_standstill_is_over() -> None:
    judge = after_standing_still()
    admitted = 10_000 + refusals(judge, deadline=2.0, most=1_000)
    judge.learn([ended(admitted, 0.11)])
    assert refusals(judge, deadline=2.0, most=1) == 0


def test_a_standstill_that_both_kinds_of_prompts_saw_fades_where_only_the_shortest_is_asked_about() -> None:
    judge, crowded = after_standing_still(), EMPTY._replace(waiting_requests=(0, 1, 0))
    long = CONFIG.long_prompt_tokens + 1
    for number in range(300):
        judge.first_token(make_request(number, [3] * long), long, crowded, 0.0)
        judge.learn([ended(number, 1e5)])
    shortest = make_request(1, [3], 1, ttft_deadline=2.0)
    with pytest.raises(OverloadedError):
        judge.check_shortest(shortest, crowded, 0.0)
    for _ in range(1_000):
        with contextlib.suppress(OverloadedError):
            judge.check_shortest(shortest, crowded, 0.0)
    judge.check_shortest(shortest, crowded, 0.0)


def test_refusals_that_the_model_itself_causes_fade_nothing() -> None:
    judge, crowded = after_standing_still(), EMPTY._replace(waiting_requests=(0, 1, 0))
    before = judge.first_token(make_request(1, [3] * 100), 100, crowded, 0.0)
    assert refusals(judge, deadline=0.05, most=500) == 500
    assert judge.first_token(make_request(1, [3] * 100), 100, crowded, 0.0) == before


def test_who_would_only_wait_to_miss_the_deadline_is_refused_with_the_delay() -> None:
    busy, ahead = EMPTY._replace(waiting_requests=(0, 10, 0)), (10, 5000)
    late = {
        "ttft_deadline": make_request(1, [3] * 100, 10, ttft_deadline=102.0),
        "deadline": make_request(1, [3] * 100, 10, deadline=102.0),
    }
    for name, request in late.items():
        with pytest.raises(OverloadedError) as refused:
            forecast(ahead).check(request, 100, busy, 100.0)
        assert refused.value.reason == f"predicted_{name}"
        assert 4.2 < refused.value.retry_after < 4.4
    forecast(ahead).check(make_request(1, [3] * 100, 10), 100, busy, 100.0)
    forecast(ahead).check(make_request(1, [3] * 100, 10, ttft_deadline=107.0), 100, busy, 100.0)


def test_the_deadline_of_the_whole_request_is_compared_with_its_end() -> None:
    busy = EMPTY._replace(prefilling_tokens=10)
    forecast().check(make_request(2, [3] * 100, 100, deadline=3.0), 100, busy, 0.0)
    with pytest.raises(OverloadedError, match="its end"):
        forecast().check(make_request(1, [3] * 100, 500, deadline=3.0), 100, busy, 0.0)


def test_an_empty_house_admits_everybody() -> None:
    forecast().check(make_request(1, [3] * 100, 1, ttft_deadline=0.05), 100, EMPTY, 0.0)
