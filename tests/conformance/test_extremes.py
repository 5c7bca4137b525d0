"""The smallest and the greatest steps, and the end."""

from __future__ import annotations

from array import array

import pytest

from engines.contract import BlockCopy, EngineDeadError, Sample, StepPlan
from tests.conformance.cases import RunnerCase
from tests.conformance.driver import Driver, Reading
from tests.conformance.laws import assert_agrees, assert_same_tokens, make_text


def test_an_empty_step_runs(case: RunnerCase, driver: Driver) -> None:
    result = driver.start(driver.plan()).result()
    assert result.step == driver.last_step
    assert result.outputs == []


def test_a_step_may_only_copy(case: RunnerCase, driver: Driver) -> None:
    text = make_text(driver, 20, seed=80)
    story = driver.open(text)
    driver.read(story, text[:11])
    target = driver.take()
    driver.step(copies=[BlockCopy(source=story.table[0], target=target)])
    driver.give_back(story.table)
    story.table[0] = target
    expected = driver.read_alone(text)
    assert_agrees(case, driver.read(story, text), Reading(expected.logprobs[10:], expected.tops[10:]))
    driver.close(story)


def test_a_step_in_which_nothing_is_wanted(case: RunnerCase, driver: Driver) -> None:
    text = make_text(driver, 40, seed=81)
    story = driver.open(text)
    assert driver.feed(story, text[:35]) is None
    expected = driver.read_alone(text)
    assert_agrees(case, driver.read(story, text), Reading(expected.logprobs[35:], expected.tops[35:]))
    driver.close(story)


def test_the_greatest_step(case: RunnerCase, driver: Driver) -> None:
    """As many rows as there may be, with as many new tokens as there may be."""
    limits = driver.runner.limits
    share = limits.max_step_tokens // limits.max_rows
    lengths = [share] * (limits.max_rows - 1)
    lengths.append(limits.max_step_tokens - sum(lengths))
    prompts = [make_text(driver, length, seed=90 + at) for at, length in enumerate(lengths)]
    alone = [driver.generate_alone(prompt, 1) for prompt in prompts]
    stories = [driver.open(prompt) for prompt in prompts]
    rows = [driver.row(story, prompt, Sample()) for story, prompt in zip(stories, prompts, strict=True)]
    outputs = driver.step(*zip(stories, rows, strict=True))
    for output, expected in zip(outputs, alone, strict=True):
        assert_same_tokens(case, list(output.tokens), expected)
    for story in stories:
        driver.close(story)


def test_the_longest_sequence(case: RunnerCase, driver: Driver) -> None:
    limits = driver.runner.limits
    text = make_text(driver, limits.max_context + 1, seed=82)
    story = driver.open(text)
    reading = driver.read(story, text, chunk=limits.max_step_tokens)
    assert story.past == limits.max_context
    driver.close(story)
    assert_agrees(case, driver.read_alone(text, chunk=limits.max_step_tokens // 2 + 1), reading)


def test_a_closed_runner_refuses_everything(case: RunnerCase) -> None:
    runner = case.make()
    driver = Driver(runner)
    driver.generate_alone([1, 2, 3], 2)
    driver.last_step += 1
    runner.close()
    runner.close()
    with pytest.raises(EngineDeadError):
        runner.start(StepPlan(step=driver.last_step, rows=[]))
    with pytest.raises(EngineDeadError):
        runner.read_blocks([0])
    with pytest.raises(EngineDeadError):
        runner.write_blocks([0], [bytes(runner.limits.bytes_per_block)])


def test_closing_amid_a_step_ends_it(case: RunnerCase) -> None:
    runner = case.make()
    driver = Driver(runner)
    story = driver.open(array("i", [1, 2, 3]))
    handle = driver.start(driver.plan(driver.row(story, [1, 2, 3], Sample())))
    runner.close()
    with pytest.raises(EngineDeadError):
        handle.result()


def test_limits_are_plain_numbers(case: RunnerCase, driver: Driver) -> None:
    limits = driver.runner.limits
    assert limits.block_count > 0
    assert limits.bytes_per_block == limits.block_size * sum(group.bytes_per_token for group in limits.kv_groups)
    assert limits.max_rows <= limits.max_step_tokens
    assert driver.runner.capabilities.score
    assert driver.runner.capabilities.immediate_cancel
