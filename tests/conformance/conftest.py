"""One runner a case, shared by all tests of the case: what one test leaves behind must not matter to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conformance.cases import RunnerCase, runner_cases
from tests.conformance.driver import Driver
from tests.conformance.executor_cases import Client, ExecutorCase, Make, executor_cases


@pytest.fixture(scope="session", params=runner_cases())
def case(request: pytest.FixtureRequest) -> RunnerCase:
    make_case: Callable[[], RunnerCase] = request.param
    return make_case()


@pytest.fixture(scope="session")
def driver(case: RunnerCase) -> Iterator[Driver]:
    runner = case.make()
    yield Driver(runner)
    runner.close()


@pytest.fixture(params=executor_cases(), ids=str)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    case: ExecutorCase = request.param
    clients: list[Client] = []

    def make_client(blocks: int = 64, batch: int = 8) -> Client:
        clients.append(Client(case.make(blocks, batch)))
        return clients[-1]

    yield make_client
    for client in clients:
        client.executor.close()
