"""One form of weights, loaded: how true it is to a reference, and how fast its steps are."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import engines.openvino
from build_scripts.checkpoint import Checkpoint
from build_scripts.description import UNMEASURED, hoped_numerics, model_shape
from build_scripts.driver import Driver, Lane
from build_scripts.golden.reference import Golden
from build_scripts.graph import RECIPE
from build_scripts.numerics import NumericsChoice
from engines.contract import Output
from engines.manifest import SCHEMA_VERSION, EngineManifest, Source

CONTEXT = 256
"""Tokens behind which every stream decodes."""
PROMPT = 512
"""Tokens of a prompt that is run in one step."""
ONE, MANY = 1, 16
"""Streams that decode together."""
STEPS = {ONE: 24, MANY: 12}
"""Decode steps of a round, by streams; the first of them is not counted."""
_BLOCKS = 320
"""Room for MANY contexts of their own and a prompt."""


@dataclass(frozen=True)
class Fidelity:
    agreement: float
    """Share of the golden positions whose likeliest token is the reference's."""
    mean_difference: float
    """Of the log-probability of the token that follows."""
    perplexity: float


@dataclass
class Speed:
    """Seconds, one entry a round."""

    prompt: list[float] = field(default_factory=list)
    one: list[float] = field(default_factory=list)
    """Of a step: the round's median."""
    many: list[float] = field(default_factory=list)

    def rates(self) -> tuple[float, float, float]:
        """Tokens per second of a prompt, of one stream, of MANY streams together: medians of the rounds."""
        prompt, one, many = (statistics.median(seconds) for seconds in (self.prompt, self.one, self.many))
        return PROMPT / prompt, ONE / one, MANY / many


class FormBench:
    """Holds a loaded engine; close() gives it back."""

    def __init__(self, directory: Path, checkpoint: Checkpoint, choice: NumericsChoice, text: list[int]) -> None:
        """``text``: at least PROMPT tokens. Takes seconds: loads the engine."""
        self.speed = Speed()
        self._text = text
        self._runner = engines.openvino.load(directory, kv_blocks=_BLOCKS, manifest=manifest_of(checkpoint, choice))
        self._driver = Driver(self._runner)
        self._streams: list[Lane] = []

    def close(self) -> None:
        self._runner.close()

    def fidelity(self, golden: Golden) -> Fidelity:
        """No floor: here every form is to be seen, however far off."""
        differences, overturned = self.against(golden)
        perplexity = math.exp(-statistics.fmean(self._score(self._text[:PROMPT], top=0).logprobs))
        return Fidelity(1 - len(overturned) / len(differences), statistics.fmean(differences), perplexity)

    def against(self, golden: Golden) -> tuple[list[float], list[float]]:
        """By position, the difference of the following token's log-probability; and the reference's lead, a difference of
        log-probabilities too, at the positions whose likeliest token is another here."""
        differences: list[float] = []
        overturned: list[float] = []
        for sequence in golden.sequences:
            output = self._score(sequence.whole, top=1)
            differences += [abs(mine - theirs) for mine, theirs in zip(output.logprobs, sequence.logprobs, strict=True)]
            places = zip(output.top, sequence.argmax, sequence.lead, strict=True)
            overturned += [lead for top, best, lead in places if top[0][0] != best]
        return differences, overturned

    def warm_up(self) -> None:
        """Before the first round: runs the streams' contexts, and each shape once, whose first step pays for its kernels."""
        # Each stream has keys and values of its own, as streams have: shared ones would stay in the caches.
        self._streams = [self._opened() for _ in range(MANY)]
        self.run_round()
        self.speed = Speed()

    def run_round(self) -> None:
        self.speed.prompt.append(self._prompt_seconds())
        self.speed.one.append(self._step_seconds(ONE))
        self.speed.many.append(self._step_seconds(MANY))

    def _opened(self) -> Lane:
        lane = self._driver.lane(self._text[:CONTEXT], CONTEXT + max(STEPS.values()) + 1)
        self._driver.step([self._driver.greedy(lane, CONTEXT)])
        return lane

    def _prompt_seconds(self) -> float:
        lane = self._driver.lane(self._text[:PROMPT], PROMPT)
        _, seconds = self._driver.timed_step([self._driver.greedy(lane, PROMPT)])
        self._driver.release([lane])
        return seconds

    def _step_seconds(self, streams: int) -> float:
        """The median of a round's steps, from the context's end each time."""
        lanes = self._streams[:streams]
        for lane in lanes:
            lane.computed = CONTEXT
            lane.tokens[CONTEXT:] = self._text[CONTEXT : CONTEXT + 1]
        seconds = []
        for _ in range(STEPS[streams]):
            outputs, elapsed = self._driver.timed_step([self._driver.greedy(lane, 1) for lane in lanes])
            seconds.append(elapsed)
            for lane, output in zip(lanes, outputs, strict=True):
                lane.tokens.extend(output.tokens)
        return statistics.median(seconds[1:])

    def _score(self, tokens: list[int], top: int) -> Output:
        lane = self._driver.lane(tokens, len(tokens))
        (output,) = self._driver.step([self._driver.score(lane, len(tokens) - 1, top)])
        self._driver.release([lane])
        return output


def manifest_of(checkpoint: Checkpoint, choice: NumericsChoice) -> EngineManifest:
    """What loading needs of an engine that is not published."""
    return EngineManifest(
        schema_version=SCHEMA_VERSION,
        engine="openvino",
        built_at="",
        fingerprint="measured",
        recipe=RECIPE,
        model=model_shape(checkpoint.decoder),
        source=Source("measured", checkpoint.kind, "", "", checkpoint.tensors.quantisation(), ""),
        numerics=hoped_numerics(choice),
        profile=UNMEASURED,
        tokenizer=checkpoint.tokenizer_info,
        tools={},
        files=(),
    )
