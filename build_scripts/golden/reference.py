"""Golden sequences: what a reference implementation makes of a checkpoint, position by position."""

from __future__ import annotations

from importlib import resources

import msgspec
import numpy as np

from build_scripts.decoder import Decoder
from build_scripts.errors import CheckpointError
from build_scripts.reference.unsharded import log_probabilities
from build_scripts.weights import TensorSource

_COMMITTED = {
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53": "smollm2-135m-instruct.json",
}
"""By the checkpoint's sha256."""

OWN_POSITIONS = 24
"""Positions of the text that our own forward pass computes where nothing golden is committed: seconds, not minutes."""


class GoldenSequence(msgspec.Struct, frozen=True):
    """Position i has read tokens 0 .. i of prompt + tokens."""

    text: str
    prompt: list[int]
    tokens: list[int]
    """The reference's greedy continuation; may be empty."""
    argmax: list[int]
    """By position, the likeliest next token."""
    lead: list[float]
    """By position, how much likelier it is than the second: a difference of log-probabilities."""
    logprobs: list[float]
    """By position, the log-probability of the token that follows in prompt + tokens."""

    @property
    def whole(self) -> list[int]:
        return self.prompt + self.tokens


class Golden(msgspec.Struct, frozen=True):
    source_sha256: str
    made_with: dict[str, str]
    sequences: list[GoldenSequence]

    @property
    def reference(self) -> str:
        return ", ".join(
            f"{name} {self.made_with[name]}" for name in ("transformers", "torch", "numpy") if name in self.made_with
        )

    @property
    def positions(self) -> int:
        return sum(len(sequence.argmax) for sequence in self.sequences)


def find_golden(source_sha256: str) -> Golden | None:
    """The committed golden data of exactly this checkpoint file, if there is any."""
    name = _COMMITTED.get(source_sha256)
    if name is None:
        return None
    data = resources.files("build_scripts.golden").joinpath(name).read_bytes()
    return msgspec.json.decode(data, type=Golden)


def own_golden(decoder: Decoder, source: TensorSource, source_sha256: str, prompt: list[int]) -> Golden:
    """Golden data from this project's NumPy forward pass over the checkpoint, which shares no code with the graph."""
    prompt = prompt[: OWN_POSITIONS + 1]
    table = log_probabilities(decoder, source, prompt[:-1], np.float32)
    if not np.all(np.isfinite(table)):
        raise CheckpointError("the checkpoint computes values that are not finite: its weights are damaged")
    best = np.sort(table, axis=-1)[:, -2:]
    sequence = GoldenSequence(
        text="",
        prompt=prompt,
        tokens=[],
        argmax=[int(token) for token in table.argmax(-1)],
        lead=[float(value) for value in best[:, 1] - best[:, 0]],
        logprobs=[float(table[position, token]) for position, token in enumerate(prompt[1:])],
    )
    return Golden(source_sha256, {"numpy": np.__version__}, [sequence])
