"""What sampling promises through a runner."""

from __future__ import annotations

from array import array
from itertools import pairwise

import pytest

from engines.contract import PlanError, Sample, Score
from engines.sampling.params import SamplingParams
from tests.conformance.cases import RunnerCase
from tests.conformance.driver import Driver
from tests.conformance.laws import assert_same_tokens, make_text

WARM = SamplingParams(temperature=1.0, seed=5)


def test_the_carried_token_is_the_one_that_was_drawn(case: RunnerCase, driver: Driver) -> None:
    """tokens=None means what naming the drawn token means."""
    prompt = make_text(driver, 30, seed=1)
    carried = driver.generate_alone(prompt, 6)
    story = driver.open(prompt)
    said: list[int] = []
    tokens = prompt
    for _ in range(6):
        output = driver.feed(story, tokens, Sample())
        assert output is not None
        said += output.tokens
        tokens = [said[-1]]
    driver.close(story)
    assert said == carried


def test_a_token_is_carried_over_one_step_only(case: RunnerCase, driver: Driver) -> None:
    story = driver.open([1, 2, 3])
    driver.feed(story, [1, 2, 3], Sample())
    driver.start(driver.plan()).result()
    with pytest.raises(PlanError):
        driver.start(driver.plan(driver.row(story, None, Sample())))
    driver.close(story)


def test_the_carried_token_is_the_last_of_several(case: RunnerCase, driver: Driver) -> None:
    story = driver.open([1, 2, 3])
    output = driver.feed(story, [1, 2, 3], Sample(count=3))
    assert output is not None
    after = driver.feed(story, None, Sample())
    named = driver.open([1, 2, 3])
    driver.feed(named, [1, 2, 3])
    again = driver.feed(named, [output.tokens[-1]], Sample())
    assert after is not None
    assert again is not None
    assert_same_tokens(case, list(after.tokens), list(again.tokens))
    driver.close(story)
    driver.close(named)


def test_several_samples_are_those_of_single_steps(case: RunnerCase, driver: Driver) -> None:
    prompt, draft = make_text(driver, 29, seed=2), make_text(driver, 6, seed=3)
    story = driver.open(prompt)
    output = driver.feed(story, prompt + draft, Sample(count=7))
    assert output is not None
    assert len(output.tokens) == 7
    single: list[int] = []
    other = driver.open(prompt)
    for tokens in (prompt, *([token] for token in draft)):
        step = driver.feed(other, tokens, Sample())
        assert step is not None
        single += step.tokens
    assert_same_tokens(case, list(output.tokens), single)
    driver.close(story)
    driver.close(other)


def test_score_and_sample_tell_the_same_log_probability(case: RunnerCase, driver: Driver) -> None:
    prompt = make_text(driver, 33, seed=4)
    sampled, scored = driver.open(prompt, SamplingParams(logprobs=3)), driver.open(prompt)
    output = driver.feed(sampled, prompt, Sample())
    assert output is not None
    score = driver.feed(scored, prompt, Score(targets=array("i", output.tokens), top=3))
    assert score is not None
    assert score.tokens == ()
    assert output.logprobs == pytest.approx(score.logprobs, abs=max(case.tolerance, 1e-5))
    assert [token for token, _ in output.top[0]] == [token for token, _ in score.top[0]]
    assert output.top[0][0] == (output.tokens[0], output.logprobs[0])
    best = [logprob for _, logprob in score.top[0]]
    assert best == sorted(best, reverse=True)
    assert all(logprob <= 0.0 for logprob in best)
    driver.close(sampled)
    driver.close(scored)


@pytest.mark.parametrize(("logprobs", "top"), [(None, 0), (0, 0), (2, 2)])
def test_log_probabilities_come_only_when_asked_for(
    case: RunnerCase, driver: Driver, logprobs: int | None, top: int
) -> None:
    story = driver.open([1, 2], SamplingParams(logprobs=logprobs))
    output = driver.feed(story, [1, 2], Sample(count=2))
    assert output is not None
    assert len(output.logprobs) == (0 if logprobs is None else 2)
    assert [len(pairs) for pairs in output.top] == ([top, top] if top else [])
    driver.close(story)


def test_scores_cover_the_whole_vocabulary(case: RunnerCase, driver: Driver) -> None:
    """Log-probabilities over all tokens are those of one distribution."""
    story = driver.open([1, 2])
    size = driver.runner.limits.vocab_size
    output = driver.feed(story, [1, 2], Score(targets=array("i", [3]), top=size))
    assert output is not None
    (pairs,) = output.top
    assert sorted(token for token, _ in pairs) == list(range(size))
    assert sum(2.718281828459045**logprob for _, logprob in pairs) == pytest.approx(1.0, abs=1e-3)
    driver.close(story)


def test_equal_seeds_say_the_same_and_others_do_not(case: RunnerCase, driver: Driver) -> None:
    prompt = make_text(driver, 10, seed=6)
    first = driver.generate_alone(prompt, 12, WARM)
    assert driver.generate_alone(prompt, 12, WARM) == first
    assert driver.generate_alone(prompt, 12, SamplingParams(temperature=1.0, seed=6)) != first
    assert driver.generate_alone(prompt, 12, WARM, index=1) != first
    assert driver.generate_alone(prompt, 12) != first


def test_draws_do_not_depend_on_batch_mates(case: RunnerCase, driver: Driver) -> None:
    prompts = [make_text(driver, 9 + at, seed=at) for at in range(4)]
    stories = [driver.open(prompt, WARM) for prompt in prompts]
    said: list[list[int]] = [[] for _ in prompts]
    for _ in range(8):
        rows = [driver.row(s, None if said[at] else prompts[at], Sample()) for at, s in enumerate(stories)]
        for at, output in enumerate(driver.step(*zip(stories, rows, strict=True))):
            said[at] += output.tokens
    for story in stories:
        driver.close(story)
    for prompt, tokens in zip(prompts, said, strict=True):
        assert_same_tokens(case, driver.generate_alone(prompt, 8, WARM), tokens)


SHAPED = SamplingParams(temperature=0.8, seed=3, frequency_penalty=1.0, repetition_penalty=1.2, no_repeat_ngram=2)


def test_penalties_and_bans_do_not_depend_on_batch_mates(case: RunnerCase, driver: Driver) -> None:
    prompts = [make_text(driver, 9 + at, seed=at) for at in range(3)]
    stories = [driver.open(prompt, how) for prompt, how in zip(prompts, (SHAPED, WARM, SHAPED), strict=True)]
    said: list[list[int]] = [[] for _ in prompts]
    for _ in range(8):
        rows = [driver.row(s, None if said[at] else prompts[at], Sample()) for at, s in enumerate(stories)]
        for at, output in enumerate(driver.step(*zip(stories, rows, strict=True))):
            said[at] += output.tokens
    for story in stories:
        driver.close(story)
    for at in (0, 2):
        assert_same_tokens(case, driver.generate_alone(prompts[at], 8, SHAPED), said[at])
        pairs = list(pairwise([*prompts[at], *said[at]]))[len(prompts[at]) - 1 :]
        assert len(set(pairs)) == len(pairs)


def test_where_bans_leave_nothing_that_sequence_alone_gets_no_token(case: RunnerCase, driver: Driver) -> None:
    everything = tuple((token, -100.0) for token in range(driver.runner.limits.vocab_size))
    prompt = make_text(driver, 12, seed=1)
    stuck = driver.open(prompt, SamplingParams(logit_bias=everything, logprobs=1))
    free = driver.open(prompt)
    moves = [(story, driver.row(story, prompt, Sample())) for story in (stuck, free)]
    nothing, something = driver.step(*moves)
    assert (nothing.tokens, nothing.logprobs, nothing.top) == ((), (), ())
    assert len(something.tokens) == 1
    driver.close(stuck)
    driver.close(free)


def test_an_early_end_cannot_be_drawn_and_a_biased_token_is(case: RunnerCase, driver: Driver) -> None:
    prompt = make_text(driver, 12, seed=2)
    wanted = driver.runner.limits.vocab_size - 1
    eager = SamplingParams(logit_bias=((wanted, 100.0),), min_tokens=3, ending_ids=(wanted,))
    said = driver.generate_alone(prompt, 5, eager)
    assert wanted not in said[:3]
    assert said[3:] == [wanted, wanted]
