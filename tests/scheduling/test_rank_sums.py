"""Sums by rank against a sorted list; read while they are written; and what one look touches, counted."""

from __future__ import annotations

import random
import threading
from bisect import bisect_right, insort
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.kv.block_pool import IntegrityError
from server.scheduling import rank_sums
from server.scheduling.rank_sums import NOBODY, Around, Key, RankSums, Sums, of_one

LONG = 100
Waiting = list[tuple[Key, Sums]]


def added(rows: list[Sums]) -> Sums:
    return Sums(*[sum(row[field] for row in rows) for field in range(len(NOBODY))])


def around_in(waiting: Waiting, key: Key, ahead: int, behind: int) -> Around:
    """What RankSums.around should say of a sorted list."""
    rows, at = [row for _, row in waiting], bisect_right([other for other, _ in waiting], key)
    return Around(added(rows[:at]), rows[max(0, at - ahead) : at], added(rows[at:]), rows[at : at + behind])


def ranks_of(waiting: Waiting) -> RankSums:
    ranks = RankSums()
    for key, row in waiting:
        ranks.add(key, row)
    return ranks


def guests(count: int, seed: int = 0) -> Waiting:
    rng = random.Random(seed)  # noqa: S311 - replays
    return [((1.0, rng.randrange(count) / 4, number), one(rng)) for number in range(count)]


def one(rng: random.Random) -> Sums:
    work = rng.randrange(300)
    return of_one(work, work + rng.randrange(300), LONG, room=rng.randrange(300), output=rng.randrange(300))


def test_of_one_waiter() -> None:
    # 150 of 400 tokens are to compute, after 250: 150 * (250 + 75) is what they attend to.
    assert of_one(150, 400, LONG, room=160, output=7) == Sums(1, 150, 2 * 150 * 325, LONG, 400, 160, 7)
    assert of_one(LONG, LONG, LONG).capped == LONG


def test_nobody_waits() -> None:
    ranks = RankSums()
    assert ranks.all == NOBODY
    assert ranks.around((1, 5.0), 3, 3) == Around(NOBODY, [], NOBODY, [])
    ranks.check_integrity([])
    with pytest.raises(IntegrityError, match="nobody waits"):
        ranks.remove((1, 5.0), of_one(1, 1, LONG))


def test_equal_ranks_are_all_ahead_of_who_comes_now() -> None:
    waiting: Waiting = [((1, 5.0, number), of_one(number, number, LONG)) for number in range(5)]
    ranks = ranks_of(waiting)
    assert ranks.around((1, 5.0, inf), 2, 2) == around_in(waiting, (1, 5.0, inf), 2, 2)
    assert ranks.around((1, 5.0, inf), 2, 2).ahead == ranks.all
    assert ranks.around((1, 4.9, inf), 2, 2).behind == ranks.all


@given(seed=st.integers(0, 2**32), crowd=st.sampled_from((1, 20, 300, 3000)), leaving=st.floats(0.2, 0.7))
def test_it_is_a_sorted_list(seed: int, crowd: int, leaving: float) -> None:
    """Fill it, let them come and go, and look around any key meanwhile."""
    rng = random.Random(seed)  # noqa: S311 - replays
    waiting = sorted(guests(crowd, seed))
    ranks = ranks_of(rng.sample(waiting, crowd))
    for number in range(crowd, crowd + 200):
        if waiting and rng.random() < leaving:
            ranks.remove(*waiting.pop(rng.choice((0, rng.randrange(len(waiting))))))
        else:
            entry = ((1.0, rng.randrange(crowd) / 4, number), one(rng))
            insort(waiting, entry)
            ranks.add(*entry)
        if number % 16 == 0:
            key, ahead, behind = (1.0, rng.uniform(-1.0, crowd / 4 + 1.0), inf), rng.randrange(70), rng.randrange(40)
            assert ranks.around(key, ahead, behind) == around_in(waiting, key, ahead, behind)
    assert ranks.all == added([row for _, row in waiting])
    ranks.check_integrity(waiting)


@pytest.mark.parametrize("order", ["first in first out", "last in first out", "shuffled"])
def test_it_shrinks_as_it_grew(order: str) -> None:
    waiting = sorted(guests(3000))
    ranks = ranks_of(waiting)
    leaving = {
        "first in first out": waiting,
        "last in first out": waiting[::-1],
        "shuffled": random.Random(1).sample(waiting, len(waiting)),  # noqa: S311 - replays
    }[order]
    for at, entry in enumerate(leaving):
        ranks.remove(*entry)
        if at % 500 == 0:
            ranks.check_integrity(leaving[at + 1 :])
    assert ranks.all == NOBODY
    ranks.check_integrity([])


def test_who_is_taken_out_must_be_who_came() -> None:
    waiting = guests(200)
    ranks = ranks_of(waiting)
    key, row = waiting[7]
    for wrong_key, wrong_row in ((key, row._replace(work=row.work + 1)), ((*key, 1), row)):
        with pytest.raises(IntegrityError):
            ranks.remove(wrong_key, wrong_row)
    ranks.check_integrity(waiting)


def test_integrity_notices_others_and_wrong_sums() -> None:
    waiting = sorted(guests(500))
    ranks = ranks_of(waiting)
    with pytest.raises(IntegrityError, match="by rank wait 500, in truth 499"):
        ranks.check_integrity(waiting[1:])
    with pytest.raises(IntegrityError, match="the first that differ"):
        ranks.check_integrity([(waiting[0][0], NOBODY), *waiting[1:]])
    root = ranks._root
    ranks._root = root._replace(sums=NOBODY)
    with pytest.raises(IntegrityError, match="sums by rank"):
        ranks.check_integrity(waiting)
    ranks._root = root._replace(children=(root.children[0]._replace(sums=NOBODY), *root.children[1:]))
    with pytest.raises(IntegrityError, match="other keys or sums"):
        ranks.check_integrity(waiting)
    ranks._root = root._replace(children=(root.children[0].children or root.children)[:1] * 65)
    with pytest.raises(IntegrityError):
        ranks.check_integrity(waiting)


def test_readers_see_whole_pictures_while_one_thread_writes() -> None:
    """All carry the same work: sums that are not of one moment would not fit together."""
    row = of_one(150, 400, LONG)
    ranks = ranks_of([((1, float(rank), rank), row) for rank in range(500)])
    wrong, looks, written = list[Around](), [0] * 3, threading.Event()

    def read(reader: int) -> None:
        rng = random.Random(reader)  # noqa: S311 - replays
        while not written.is_set() or not looks[reader]:
            looks[reader] += 1
            seen = ranks.around((1, rng.uniform(0.0, 1500.0), inf), 64, 32)
            sides = (seen.ahead, seen.nearest, 64), (seen.behind, seen.following, 32)
            fits = all(
                sums == Sums(*[sums.requests * each for each in row]) and len(listed) == min(most, sums.requests)
                for sums, listed, most in sides
            )
            if not fits or not 499 <= seen.ahead.requests + seen.behind.requests <= 501:
                wrong.append(seen)

    threads = [threading.Thread(target=read, args=(reader,)) for reader in range(3)]
    for thread in threads:
        thread.start()
    for rank in range(500, 4000):
        ranks.add((1, float(rank), rank), row)
        ranks.remove((1, float(rank - 500), rank - 500), row)
    written.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert min(looks) > 0


def test_a_look_touches_what_it_lists_and_a_few_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries summed up, and entries of leaves read, of a look around the middle."""
    touched = {"summed": 0}
    true = rank_sums.total

    def counting(rows: list[Sums]) -> Sums:
        touched["summed"] += len(rows)
        return true(rows)

    monkeypatch.setattr(rank_sums, "total", counting)
    most = {}
    for count in (100, 1000, 10_000):
        waiting = sorted(guests(count))
        ranks, most[count] = ranks_of(waiting), 0
        for at in range(0, count, count // 50):
            touched["summed"] = 0
            assert len(ranks.around(waiting[at][0], 64, 32).nearest) == min(64, at + 1)
            most[count] = max(most[count], touched["summed"])
    assert most[10_000] <= 3 * 64
    assert most[10_000] < most[100] + 2 * 64
