"""How the tensors of a target are made: what is read, how it is cut, and as what it is stored.

A plain checkpoint gives each target one tensor. A quantised one gives a target's weight several: codes, scales of blocks,
scales of the whole. Each knows its shape before anything is read, so that a rank file can be laid out first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from build_scripts.casting import STORED_AS, FloatType, cast
from build_scripts.decoder import Decoder, Shape
from build_scripts.errors import UnsupportedError
from build_scripts.trtllm.layout import Layout
from build_scripts.trtllm.targets import Split, Target, cut, cut_shape
from build_scripts.weights import Dense


class DenseSource(Protocol):
    """A checkpoint of plain floats."""

    def read(self, name: str) -> Dense: ...


class Join(Enum):
    BELOW = auto()
    """Parts one below the other."""
    SAME = auto()
    """The parts must be equal, and one is stored: a scale that fused projections share."""
    GREATEST = auto()
    """The greatest of the parts."""


@dataclass(frozen=True)
class Piece:
    key: str
    """What to read; the recipe knows where."""
    shape: Shape
    split: Split


@dataclass(frozen=True)
class Output:
    """One tensor of a rank file."""

    name: str
    stored: str
    """As safetensors spells the type."""
    pieces: tuple[Piece, ...]
    join: Join = Join.BELOW
    shift: float = 0.0

    def shard_shape(self, decoder: Decoder, layout: Layout) -> Shape:
        cuts = [cut_shape(piece.shape, piece.split, decoder, layout) for piece in self.pieces]
        return (sum(shape[0] for shape in cuts), *cuts[0][1:]) if self.join is Join.BELOW else cuts[0]


class Recipe(Protocol):
    def outputs(self, target: Target) -> list[Output]:
        """The tensors that a target becomes. Reads nothing but headers."""
        ...

    def read(self, output: Output, piece: Piece) -> NDArray[Any]:
        """A piece, whole, in the stored type of its output."""
        ...


class FloatRecipe:
    """A plain checkpoint: every target is one tensor of the chosen type."""

    def __init__(self, decoder: Decoder, source: DenseSource, dtype: FloatType) -> None:
        self._shapes = decoder.tensors()
        self._source = source
        self._dtype = dtype

    def outputs(self, target: Target) -> list[Output]:
        pieces = tuple(Piece(part.source, self._shapes[part.source], part.split) for part in target.parts)
        return [Output(target.name, STORED_AS[self._dtype], pieces, shift=target.shift)]

    def read(self, output: Output, piece: Piece) -> NDArray[Any]:
        return cast(self._source.read(piece.key), self._dtype, piece.key, shift=output.shift)


def check_cuts(output: Output, layout: Layout) -> None:
    """Raises UnsupportedError where a shard's border would fall inside a block of a quantised tensor."""
    for piece in output.pieces:
        axis = {Split.ROWS: 0, Split.COLUMNS: 1}.get(piece.split)
        if axis is not None and piece.shape[axis] % layout.tp:
            raise UnsupportedError(
                f"tp {layout.tp} would cut through a block of {piece.key}: {piece.shape[axis]} stored units do not divide"
            )


def joined(output: Output, parts: list[NDArray[Any]], decoder: Decoder, layout: Layout, shard: int) -> NDArray[Any]:
    """A shard's tensor of an output whose pieces were read. Raises UnsupportedError where parts that must agree differ."""
    if output.join is Join.BELOW:
        cuts = [
            cut(values, piece.split, decoder, layout, shard) for values, piece in zip(parts, output.pieces, strict=True)
        ]
        return cuts[0] if len(cuts) == 1 else np.concatenate(cuts)
    if output.join is Join.GREATEST:
        return np.asarray(np.max(np.stack(parts), axis=0))
    for values, piece in zip(parts, output.pieces, strict=True):
        if not np.array_equal(values, parts[0]):
            raise UnsupportedError(
                f"{piece.key} differs from {output.pieces[0].key}, and {output.name} holds one for both; "
                "export the checkpoint with ModelOpt, which makes fused projections share their scales"
            )
    return cut(parts[0], output.pieces[0].split, decoder, layout, shard)
