"""A short storm in every run of the tests; CI runs two minutes of `make chaos` beside them, with every end that a process can have."""

from __future__ import annotations

from tests.chaos.laws import Books, Tally, settle
from tests.chaos.soak import SIMULATED, storm
from tests.chaos.storm import BREEZE


async def test_a_storm_breaks_no_law_case_D8_D12_H10_H11_I1_I2() -> None:
    tally, books = Tally(), Books()
    async with storm(SIMULATED[0], BREEZE, 1, tally, engines=SIMULATED) as made:
        await made.learn()
        await made.round(5)
        await settle(made.server, books, tally)
        books.close(tally, "storm")
        await made.drain()
    assert tally.broken == []
    wanted = {"ok", "cancelled", "refused", "rotated", "swapped", "rude", "killed", "stalled", "steps failed"}
    assert wanted <= set(tally.outcomes)
