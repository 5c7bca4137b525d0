"""One runner a case, shared by all tests of the case: what one test leaves behind must not matter to the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.cases import RunnerCase, runner_cases
from tests.conformance.driver import Driver


@pytest.fixture(scope="session", params=runner_cases(), ids=str)
def case(request: pytest.FixtureRequest) -> RunnerCase:
    chosen: RunnerCase = request.param
    return chosen


@pytest.fixture(scope="session")
def driver(case: RunnerCase) -> Iterator[Driver]:
    runner = case.make()
    yield Driver(runner)
    runner.close()
