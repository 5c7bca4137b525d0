"""Law 3: what a sequence says does not depend on how its tokens were cut into steps, nor on who shared them."""

from __future__ import annotations

import random

import pytest

from engines.contract import BlockCopy, Output, Sample
from tests.conformance.cases import RunnerCase
from tests.conformance.driver import Driver, Reading
from tests.conformance.laws import assert_agrees, assert_same_tokens, distance, make_text


@pytest.mark.parametrize("chunk", [1, 7, 31, 32, 33, 64])
def test_a_prompt_in_chunks_reads_like_a_whole_one(case: RunnerCase, driver: Driver, chunk: int) -> None:
    text = make_text(driver, 101, seed=chunk)
    assert_agrees(case, driver.read_alone(text, chunk), driver.read_alone(text))


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64])
def test_prompts_that_end_at_a_block_border_go_on_like_others(case: RunnerCase, driver: Driver, length: int) -> None:
    prompt = make_text(driver, length, seed=100 + length)
    said = driver.generate_alone(prompt, 5)
    assert_agrees(case, driver.read_alone(prompt + said, chunk=length), driver.read_alone(prompt + said))
    for at in range(5):
        (once,) = driver.generate_alone(prompt + said[:at], 1)
        assert_same_tokens(case, [once], [said[at]])


@pytest.mark.parametrize("seed", range(4))
def test_batch_mates_do_not_matter(case: RunnerCase, driver: Driver, seed: int) -> None:
    """Mixed steps: some sequences prefill in chunks of any size, others go token by token, all begin at different steps."""
    draw = random.Random(seed)  # noqa: S311 - the same texts every run
    texts = [make_text(driver, draw.randint(2, 110), seed=1000 * seed + at) for at in range(6)]
    alone = [driver.read_alone(text) for text in texts]
    stories = [driver.open(text) for text in texts]
    readings = [Reading([], []) for _ in texts]
    while True:
        unread = [at for at, text in enumerate(texts) if stories[at].past < len(text) - 1]
        if not unread:
            break
        going = draw.sample(unread, draw.randint(1, len(unread)))
        moves = [(stories[at], driver.reading_row(stories[at], texts[at], draw.choice([1, 1, 5, 20]))) for at in going]
        for at, output in zip(going, driver.step(*moves), strict=True):
            readings[at] += Reading(list(output.logprobs), list(output.top))
    for story, got, expected in zip(stories, readings, alone, strict=True):
        driver.close(story)
        assert_agrees(case, got, expected)


def test_generated_tokens_do_not_depend_on_the_batch(case: RunnerCase, driver: Driver) -> None:
    prompts = [make_text(driver, 3 + 17 * at, seed=at) for at in range(5)]
    stories = [driver.open(prompt) for prompt in prompts]
    said: list[list[int]] = [[] for _ in prompts]
    for step in range(12):
        running = range(min(step + 1, len(prompts)))
        rows = [driver.row(stories[at], None if said[at] else prompts[at], Sample()) for at in running]
        for at, output in enumerate(driver.step(*((stories[at], row) for at, row in zip(running, rows, strict=True)))):
            assert output.sequence == stories[at].id
            said[at] += output.tokens
    for at, story in enumerate(stories):
        driver.close(story)
        assert_same_tokens(case, driver.generate_alone(prompts[at], len(said[at])), said[at])
        whole = prompts[at] + said[at]
        assert_agrees(case, driver.read_alone(whole, chunk=len(prompts[at])), driver.read_alone(whole))


def test_shared_prefix_blocks_read_like_own_ones(case: RunnerCase, driver: Driver) -> None:
    size = driver.block_size
    prefix = make_text(driver, 2 * size, seed=1)
    texts = [prefix + make_text(driver, tail, seed=tail) for tail in (size + 5, 9)]
    fresh = [driver.read_alone(text).logprobs[2 * size :] for text in texts]
    donor = driver.open(texts[0])
    donor_reading = driver.read(donor, texts[0], chunk=2 * size)
    readers = [driver.open(text) for text in texts]
    for reader in readers:
        driver.share(reader, donor, 2)
    outputs = driver.step(*((s, driver.reading_row(s, t, 1 << 20)) for s, t in zip(readers, texts, strict=True)))
    for output, expected in zip(outputs, fresh, strict=True):
        assert max(abs(a - b) for a, b in zip(output.logprobs, expected, strict=True)) <= case.tolerance
    assert max(abs(a - b) for a, b in zip(donor_reading.logprobs[2 * size :], fresh[0], strict=True)) <= case.tolerance
    for story in (donor, *readers):
        driver.close(story)


def test_a_copied_partial_block_starts_two_histories(case: RunnerCase, driver: Driver) -> None:
    size = driver.block_size
    stem = make_text(driver, size + 11, seed=5)
    texts = [stem + make_text(driver, 20, seed=6), stem + make_text(driver, 25, seed=7)]
    donor, reader = driver.open(texts[0]), driver.open(texts[1])
    driver.read(donor, [*stem, 0])
    driver.share(reader, donor, 1)
    reader.table.append(driver.take())
    reader.past = len(stem)
    copy = BlockCopy(source=donor.table[1], target=reader.table[1])
    outputs = driver.step(
        *((s, driver.reading_row(s, t, 4)) for s, t in ((donor, texts[0]), (reader, texts[1]))), copies=[copy]
    )
    for story, text, output in zip((donor, reader), texts, outputs, strict=True):
        got = _reading(output) + driver.read(story, text, chunk=3)
        expected = driver.read_alone(text)
        start = len(stem)
        assert_agrees(case, got, Reading(expected.logprobs[start:], expected.tops[start:]))
        driver.close(story)


def test_copies_run_in_order_and_before_the_rows(case: RunnerCase, driver: Driver) -> None:
    """a -> b -> c in one step: c holds what a held."""
    text = make_text(driver, 20, seed=8)
    story = driver.open(text)
    driver.read(story, text[:11])
    first, second, third = story.table[0], driver.take(), driver.take()
    story.table[0] = third
    (output,) = driver.step(
        (story, driver.reading_row(story, text, 1 << 20)),
        copies=[BlockCopy(source=first, target=second), BlockCopy(source=second, target=third)],
    )
    expected = driver.read_alone(text)
    assert_agrees(case, _reading(output), Reading(expected.logprobs[10:], expected.tops[10:]))
    driver.close(story)
    driver.give_back([first, second])


@pytest.mark.parametrize("kept", [0, 2, 5])
def test_rejected_drafts_leave_no_trace(case: RunnerCase, driver: Driver, kept: int) -> None:
    """Five drafted tokens go through the model across a block border; only ``kept`` stand; the sequence goes on from there."""
    prompt = make_text(driver, driver.block_size - 3, seed=20)
    text = prompt + make_text(driver, 24, seed=21)
    draft = text[len(prompt) : len(prompt) + kept] + make_text(driver, 5 - kept, seed=22)
    story = driver.open(prompt)
    driver.feed(story, prompt)
    driver.feed(story, draft, Sample(count=len(draft)))
    story.past = len(prompt) + kept
    got = driver.read(story, text, chunk=4)
    driver.close(story)
    expected = driver.read_alone(text)
    assert_agrees(
        case, got, Reading(expected.logprobs[story.past - len(got.logprobs) :], expected.tops[-len(got.tops) :])
    )


def test_blocks_mean_nothing_after_they_were_freed(case: RunnerCase, driver: Driver) -> None:
    """The same blocks, another sequence, another order."""
    first, second = make_text(driver, 90, seed=30), make_text(driver, 95, seed=31)
    expected = driver.read_alone(second)
    story = driver.open(first)
    driver.read(story, first)
    blocks = list(story.table)
    driver.close(story)
    heir = driver.open(second)
    for block in blocks:
        assert driver.take() in blocks
        heir.table.append(block)
    assert_agrees(case, driver.read(heir, second, chunk=10), expected)
    driver.close(heir)


@pytest.mark.parametrize("filler", [0x00, 0x7F, 0xFF])
def test_garbage_in_cells_not_written_does_not_leak(case: RunnerCase, driver: Driver, filler: int) -> None:
    """0xFF bytes are NaN in every float format: one multiplied in anywhere would spoil the row."""
    text = make_text(driver, 70, seed=32)
    expected = driver.read_alone(text)
    limits = driver.runner.limits
    blocks = range(limits.block_count)
    driver.runner.write_blocks(blocks, [bytes([filler]) * limits.bytes_per_block] * len(blocks))
    assert_agrees(case, driver.read_alone(text, chunk=9), expected)


def test_a_saved_block_can_be_put_back_elsewhere(case: RunnerCase, driver: Driver) -> None:
    text = make_text(driver, 3 * driver.block_size, seed=40)
    half = 2 * driver.block_size
    story = driver.open(text)
    driver.read(story, text[: half + 1])
    contents = driver.runner.read_blocks(story.table[:2])
    assert [len(content) for content in contents] == [driver.runner.limits.bytes_per_block] * 2
    driver.close(story)
    driver.read_alone(make_text(driver, half + 1, seed=41))
    again = driver.open(text)
    again.table.extend([driver.take(), driver.take()])
    driver.runner.write_blocks(again.table, contents)
    assert driver.runner.read_blocks(again.table) == contents
    again.past = half
    expected = driver.read_alone(text)
    assert_agrees(case, driver.read(again, text), Reading(expected.logprobs[half:], expected.tops[half:]))
    driver.close(again)


def test_the_measure_is_sharp(case: RunnerCase, driver: Driver) -> None:
    """The tests above would notice: a history with one wrong block is far beyond the tolerance."""
    text, other = make_text(driver, 80, seed=50), make_text(driver, 80, seed=51)
    swapped = other[: driver.block_size] + text[driver.block_size :]
    right, wrong = driver.read_alone(text), driver.read_alone(swapped)
    tail = slice(driver.block_size, None)
    assert distance(Reading(right.logprobs[tail], []), Reading(wrong.logprobs[tail], [])) > 3 * case.tolerance


def _reading(output: Output) -> Reading:
    return Reading(list(output.logprobs), list(output.top))
