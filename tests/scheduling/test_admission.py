"""Hard caps in requests and in tokens, and the delay that a refusal carries."""

from __future__ import annotations

import pytest

from server.errors import OverloadedError
from server.scheduling.admission import LONGEST_RETRY, SHORTEST_RETRY, UNMEASURED_RETRY, Admission, Backlog

ADMISSION = Admission(max_waiting_requests=4, max_waiting_tokens=1000)


def refusal(prompt: int, requests: int, tokens: int, rate: float = 100.0) -> OverloadedError:
    with pytest.raises(OverloadedError) as refused:
        ADMISSION.check(prompt, Backlog(requests, tokens, rate))
    return refused.value


def test_below_both_caps_everyone_is_admitted() -> None:
    ADMISSION.check(100, Backlog(3, 900, 100.0))


def test_an_empty_house_admits_even_what_exceeds_the_token_cap() -> None:
    ADMISSION.check(5000, Backlog(0, 0, 100.0))


def test_case_E8_the_request_cap_names_limit_and_value() -> None:
    error = refusal(1, requests=4, tokens=400)
    assert str(error) == "4 requests wait, the limit is 4"
    assert error.reason == "waiting_requests"
    assert error.retry_after == 1.0, "one of the four must leave: 100 tokens at 100 a second"


def test_case_E8_E12_the_token_cap_names_limit_and_value() -> None:
    error = refusal(300, requests=1, tokens=900)
    assert str(error) == "900 prompt tokens wait and this request has 300, the limit is 1000"
    assert error.reason == "waiting_tokens"
    assert error.retry_after == 2.0, "200 tokens too many at 100 a second"


def test_a_prompt_above_the_cap_waits_for_an_empty_house_and_no_longer() -> None:
    assert refusal(5000, requests=1, tokens=900).retry_after == 9.0


def test_the_delay_is_bounded_and_honest_before_anything_was_measured() -> None:
    assert refusal(300, requests=1, tokens=900, rate=1e9).retry_after == SHORTEST_RETRY
    assert refusal(300, requests=1, tokens=900, rate=1e-3).retry_after == LONGEST_RETRY
    assert refusal(300, requests=1, tokens=900, rate=0.0).retry_after == UNMEASURED_RETRY


def test_caps_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="max_waiting_requests must be at least 1, not 0"):
        Admission(max_waiting_requests=0, max_waiting_tokens=1)
    with pytest.raises(ValueError, match="max_waiting_tokens must be at least 1, not -5"):
        Admission(max_waiting_requests=1, max_waiting_tokens=-5)


def test_a_tenant_below_its_part_is_not_shut_out_by_one_that_has_filled_the_cap_case_E11() -> None:
    full = Backlog(4, 400, 100.0, tenant_requests=0, tenants=2)
    ADMISSION.check(10, full)
    for flood in (Backlog(4, 400, 100.0, tenant_requests=4, tenants=2), Backlog(8, 400, 100.0, 0, 2)):
        with pytest.raises(OverloadedError):
            ADMISSION.check(10, flood)
    with pytest.raises(OverloadedError):
        ADMISSION.check(10, Backlog(4, 400, 100.0, tenant_requests=0, tenants=1))
