"""A short storm in every run of the tests; `make chaos SECONDS=1800` is the long one."""

from __future__ import annotations

from tests.chaos.laws import Books, Tally, settle
from tests.chaos.soak import SIMULATED, storm
from tests.chaos.storm import BREEZE


async def test_a_storm_breaks_no_law_case_D8_D12_H10_H11_I1_I2() -> None:
    tally, books = Tally(), Books()
    async with storm(SIMULATED[0], BREEZE, 1, tally, engines=SIMULATED) as made:
        await made.learn()
        for _ in range(2):
            await made.round(4)
            await settle(made.server, books, tally)
        books.close(tally, "storm")
        await made.hang()
        await settle(made.server, Books(), tally)
        await made.drain()
    assert tally.broken == []
    wanted = {"ok", "cancelled", "refused", "rotated", "swapped", "rude", "killed", "stalled", "steps failed", "hung"}
    assert wanted <= set(tally.outcomes)
