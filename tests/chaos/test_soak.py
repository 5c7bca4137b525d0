"""A short storm in every run of the tests; `make chaos SECONDS=1800` is the long one."""

from __future__ import annotations

from tests.chaos.soak import chaos


async def test_a_storm_breaks_no_law_case_D8_D12_H10_H11_I1_I2() -> None:
    async with chaos(seed=1) as storm:
        await storm.round(6)
        await storm.drain()
    assert storm.tally.broken == []
    wanted = {"ok", "cancelled", "refused", "rotated", "swapped", "rude", "killed"}
    assert wanted <= set(storm.tally.outcomes)
