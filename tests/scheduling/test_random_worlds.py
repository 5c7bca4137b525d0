"""Thousands of random worlds: whatever else happens, each request says what it says alone, ends once, and nothing leaks."""

from __future__ import annotations

import os

import pytest

from tests.scheduling.random_world import RandomWorld

WORLDS = int(os.environ.get("FIRSTTOKEN_TEST_WORLDS", "1000"))
"""How many random worlds to run; set it higher to search longer."""
FIRST = int(os.environ.get("FIRSTTOKEN_TEST_FIRST_WORLD", "0"))
GROUPS = max(20, WORLDS // 40)
"""So that no single test runs long."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_each_request_says_what_it_says_alone_and_ends_once_case_D8_E4_F1_F10(group: int) -> None:
    for seed in range(FIRST + group, FIRST + WORLDS, GROUPS):
        try:
            RandomWorld(seed).run()
        except BaseException as error:
            error.add_note(
                f"world {seed}: FIRSTTOKEN_TEST_FIRST_WORLD={seed} FIRSTTOKEN_TEST_WORLDS=1 replays it alone"
            )
            raise
