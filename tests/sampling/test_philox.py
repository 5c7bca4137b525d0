from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from engines.sampling.philox import Purpose, philox4x32, uniforms

# The known answers of the generator's authors (Random123, kat_vectors): counter, key, output.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(*values: int) -> tuple[npt.NDArray[np.uint64], ...]:
    return tuple(np.array([value], np.uint64) for value in values)


def draw(seed: int, index: int, position: int, purpose: Purpose = Purpose.TOKEN) -> float:
    seeds, indices, positions = words(seed, index, position)
    return float(uniforms(seeds, indices, positions, purpose)[0])


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], output: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = words(*counter)
    k0, k1 = words(*key)
    assert tuple(int(word[0]) for word in philox4x32((c0, c1, c2, c3), (k0, k1))) == output


def test_every_part_of_the_identity_matters() -> None:
    base = draw(1, 0, 0)
    others = [draw(2, 0, 0), draw(1 + 2**32, 0, 0), draw(1, 1, 0), draw(1, 0, 1)]
    others += [draw(1, 0, 0, purpose) for purpose in Purpose if purpose is not Purpose.TOKEN]
    assert len({base, *others}) == len(others) + 1


def test_index_position_and_purpose_do_not_stand_in_for_each_other() -> None:
    assert len({draw(0, 1, 2), draw(0, 2, 1), draw(1, 0, 2), draw(2, 1, 0), draw(0, 1, 0, Purpose.ACCEPT)}) == 5


def test_whole_seed_range() -> None:
    assert 0.0 <= draw(2**64 - 1, 2**32 - 1, 2**32 - 1) < 1.0


def test_elements_are_independent_of_their_mates() -> None:
    seeds = np.arange(100, dtype=np.uint64) * np.uint64(2**57)
    positions = np.arange(100, dtype=np.uint64)
    together = uniforms(seeds, positions, positions, Purpose.TOKEN)
    assert [draw(int(seed), int(at), int(at)) for seed, at in zip(seeds, positions, strict=True)] == together.tolist()


@pytest.mark.parametrize("along", ["seed", "index", "position"])
def test_uniform_and_uncorrelated_along_each_part(along: str) -> None:
    count = 1 << 16
    running, fixed = np.arange(count, dtype=np.uint64), np.full(count, 7, np.uint64)
    parts = {"seed": fixed, "index": fixed, "position": fixed} | {along: running}
    numbers = uniforms(parts["seed"], parts["index"], parts["position"], Purpose.TOKEN)
    histogram = np.bincount((numbers * 256).astype(np.int64), minlength=256)
    chi_square = float(((histogram - count / 256) ** 2 / (count / 256)).sum())
    assert 255 - 5 * np.sqrt(2 * 255) < chi_square < 255 + 5 * np.sqrt(2 * 255)
    lagged = float(np.corrcoef(numbers[:-1], numbers[1:])[0, 1])
    assert abs(lagged) < 5 / np.sqrt(count)
