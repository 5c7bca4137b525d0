"""Random numbers as a pure function of what they are for: counter-based, so there is no generator state to keep, fork or replay.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). The key is the request's
64-bit seed, the 128-bit counter is (position, sequence index, purpose, 0): no two draws share an input, so none collide by hashing.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

_ROUNDS = 10
_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)
_WEYL_1 = np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_DISCARD = np.uint64(11)

Words = npt.NDArray[np.uint64]
"""32-bit words, each in a 64-bit lane so that products do not overflow."""


class Purpose(IntEnum):
    """What a draw decides. Part of its identity: draws of different purposes at one position are independent."""

    TOKEN = 0
    """The next token, from the target distribution."""
    DRAFT = 1
    """A drafted token, from a proposal distribution."""
    ACCEPT = 2
    """Whether a drafted token stands."""
    RESIDUAL = 3
    """The replacement of a drafted token that was rejected."""


def philox4x32(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Words, Words, Words, Words]:
    """Ten rounds of Philox4x32 on arrays of one shape; every element is an independent block of four 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0 = c0 * _MULTIPLIER_0
        product_1 = c2 * _MULTIPLIER_1
        c0, c1, c2, c3 = (
            (product_1 >> _WORD) ^ c1 ^ k0,
            product_1 & _LOW,
            (product_0 >> _WORD) ^ c3 ^ k1,
            product_0 & _LOW,
        )
        k0 = (k0 + _WEYL_0) & _LOW
        k1 = (k1 + _WEYL_1) & _LOW
    return c0, c1, c2, c3


def uniforms(
    seeds: npt.NDArray[np.uint64], indices: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64], purpose: Purpose
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) with 53 random bits per element. Sequence indices and positions are below 2**32."""
    zeros = np.zeros_like(positions)
    counter = (positions, indices, np.full_like(positions, purpose), zeros)
    high, low, _, _ = philox4x32(counter, (seeds & _LOW, seeds >> _WORD))
    return ((high << _WORD | low) >> _DISCARD).astype(np.float64) * 2.0**-53
