"""Runs of token ids and block ids as they cross the contract: numbers without objects, read without a copy."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    TokenArray: TypeAlias = array[int]
    BlockTable: TypeAlias = array[int]
else:  # array takes no subscript before Python 3.12, and msgspec evaluates these annotations
    TokenArray = BlockTable = array
"""A TokenArray holds token ids, ``array('i')``: 4 bytes each, appended in O(1), read by NumPy without a copy.

A BlockTable holds the block ids of one sequence in one KV group, ``array('i')``. The owner only ever appends while a step is planned; the runner
reads the first ``ceil((past + new) / block_size)`` entries *during* :meth:`StepRunner.start` and keeps no view of it."""
