"""Does the built engine compute what it must? Asked through the contract, of the loaded engine, before it is published.

Two questions. Against the reference, teacher-forced: how often is the likeliest token the reference's, and how far off is the
log-probability of the reference's token; an all-float32 engine must also generate the reference's very tokens. Against
itself: how far do log-probabilities move when the same tokens are run in chunks, one by one, and among others.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from build_scripts.driver import Driver, Lane
from build_scripts.errors import VerificationError
from build_scripts.golden.reference import Golden, GoldenSequence
from build_scripts.numerics import NumericsChoice
from engines.contract import Output

EXACT_DIFFERENCE = 1e-3
"""An all-float32 engine may be off by this much, in log-probability; 6e-5 is what was measured."""
AGREEMENT_FLOOR = {"f32": 0.985, "bf16": 0.97}
"""By activations: the least share of positions whose likeliest token is the reference's. Measured: 1.0 and 0.988."""
MEAN_FLOOR = {"f32": 0.02, "bf16": 0.06}
"""By activations: the greatest mean difference. Measured: 0.007 (8-bit keys and values) and 0.027."""
LOSSY_FLOOR = {"int8": (0.9, 0.15), "int4": (0.5, 1.0)}
"""By weights that are not the checkpoint's numbers: least agreement, greatest mean difference. docs/quantisation.md has what
was measured; a broken engine agrees nowhere and is off by several."""
SAFETY = 4.0
"""The recorded tolerance over the greatest difference seen: some hundred positions do not show the tail."""
LEAST_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Fidelity:
    """Measured against the reference."""

    reference: str
    positions: int
    argmax_agreement: float
    max_difference: float
    mean_difference: float
    greedy_equal: int
    """Sequences whose greedy tokens are the reference's, all of them."""
    greedy_total: int
    tolerance: float
    """Bound on the engine's difference from itself, alone against batched or chunked."""


def verify(driver: Driver, golden: Golden, choice: NumericsChoice) -> Fidelity:
    """Raises VerificationError where the engine is not what it must be."""
    alone = [_score_whole(driver, sequence) for sequence in golden.sequences]
    differences, agreeing = _against_reference(golden, alone)
    generated = [_generate(driver, sequence) for sequence in golden.sequences if sequence.tokens]
    expected = [sequence.tokens for sequence in golden.sequences if sequence.tokens]
    fidelity = Fidelity(
        reference=golden.reference,
        positions=golden.positions,
        argmax_agreement=agreeing / golden.positions,
        max_difference=max(differences),
        mean_difference=sum(differences) / len(differences),
        greedy_equal=sum(mine == theirs for mine, theirs in zip(generated, expected, strict=True)),
        greedy_total=len(expected),
        tolerance=max(LEAST_TOLERANCE, SAFETY * _against_itself(driver, golden, alone)),
    )
    _refuse_below_floor(fidelity, choice)
    return fidelity


def _refuse_below_floor(fidelity: Fidelity, choice: NumericsChoice) -> None:
    if choice.batch_invariant and not choice.lossy:
        if fidelity.max_difference > EXACT_DIFFERENCE:
            raise VerificationError(
                f"log-probabilities differ from the reference by up to {fidelity.max_difference:.2g}, "
                f"a float32 engine may by {EXACT_DIFFERENCE:g}"
            )
        if fidelity.greedy_equal < fidelity.greedy_total:
            raise VerificationError(
                f"greedy tokens equal the reference's on {fidelity.greedy_equal} of {fidelity.greedy_total} prompts"
            )
    floor, mean = AGREEMENT_FLOOR[choice.activations], MEAN_FLOOR[choice.activations]
    if choice.lossy:
        floor, mean = LOSSY_FLOOR[choice.weights]
    if fidelity.argmax_agreement < floor:
        raise VerificationError(
            f"the likeliest token is the reference's at {fidelity.argmax_agreement:.1%} of {fidelity.positions} positions, "
            f"the least allowed is {floor:.1%}"
        )
    if fidelity.mean_difference > mean:
        raise VerificationError(
            f"log-probabilities differ from the reference by {fidelity.mean_difference:.2g} on average, {mean:g} is allowed"
        )


def _against_reference(golden: Golden, alone: list[Output]) -> tuple[list[float], int]:
    differences: list[float] = []
    agreeing = 0
    for sequence, output in zip(golden.sequences, alone, strict=True):
        for position, (mine, theirs) in enumerate(zip(output.logprobs, sequence.logprobs, strict=True)):
            if not math.isfinite(mine) or mine > 0:
                raise VerificationError(f"the engine gives {mine} as a log-probability")
            differences.append(abs(mine - theirs))
            agreeing += output.top[position][0][0] == sequence.argmax[position]
    return differences, agreeing


def _score_whole(driver: Driver, sequence: GoldenSequence) -> Output:
    lane = driver.lane(sequence.whole, len(sequence.whole))
    (output,) = driver.step([driver.score(lane, len(sequence.whole) - 1, top=1)])
    driver.release([lane])
    return output


def _generate(driver: Driver, sequence: GoldenSequence) -> list[int]:
    lane = driver.lane(sequence.prompt, len(sequence.whole))
    for _ in sequence.tokens:
        (output,) = driver.step([driver.greedy(lane, len(lane.tokens) - lane.computed)])
        lane.tokens.extend(output.tokens)
    driver.release([lane])
    return lane.tokens[len(sequence.prompt) :]


def _against_itself(driver: Driver, golden: Golden, alone: list[Output]) -> float:
    """Greatest difference of a log-probability: each sequence alone in one step, against all together in uneven pieces."""
    draw = random.Random(0)  # noqa: S311 - a schedule, not a secret
    lanes = [driver.lane(sequence.whole, len(sequence.whole)) for sequence in golden.sequences]
    pieces: dict[int, list[float]] = {lane.sequence: [] for lane in lanes}
    while ready := [lane for lane in lanes if _left(lane) > 0]:
        chosen = draw.sample(ready, k=draw.randint(1, len(ready)))
        # Mostly single tokens, as in decoding; some chunks, as in prefill.
        work = [driver.score(lane, min(_left(lane), draw.choice((1, 1, 1, 2, 7, 16, 40)))) for lane in chosen]
        for output in driver.step(work):
            pieces[output.sequence].extend(output.logprobs)
    driver.release(lanes)
    pairs = zip(lanes, alone, strict=True)
    return max(abs(a - b) for lane, whole in pairs for a, b in zip(pieces[lane.sequence], whole.logprobs, strict=True))


def _left(lane: Lane) -> int:
    return len(lane.tokens) - 1 - lane.computed
