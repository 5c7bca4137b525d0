"""The one table of errors and statuses."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from google.rpc import code_pb2, error_details_pb2

from server import errors
from server.rpc.status import TABLE, to_status


def subclasses(kind: type[errors.ServerError]) -> Iterator[type[errors.ServerError]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_every_error_has_its_own_line_and_subclasses_come_first() -> None:
    kinds = [kind for kind, _, _ in TABLE]
    assert set(kinds) == set(subclasses(errors.ServerError))
    for place, kind in enumerate(kinds):
        assert not any(issubclass(later, kind) for later in kinds[place + 1 :]), kind
    assert len({reason for _, _, reason in TABLE}) == len(TABLE)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequestError("a.b", "must be 1, it is 2"), "INVALID_ARGUMENT"),
        (errors.NotBuiltError("n"), "INVALID_ARGUMENT"),
        (errors.UnknownModelError("no such model"), "NOT_FOUND"),
        (errors.UnauthenticatedError("who"), "UNAUTHENTICATED"),
        (errors.PermissionDeniedError("no"), "PERMISSION_DENIED"),
        (errors.PreconditionError("not now"), "FAILED_PRECONDITION"),
        (errors.DuplicateRequestError("alive"), "ALREADY_EXISTS"),
        (errors.OverloadedError("full", reason="waiting", retry_after=1.5), "RESOURCE_EXHAUSTED"),
        (errors.DeadlineError("late"), "DEADLINE_EXCEEDED"),
        (errors.RequestCancelledError("gone"), "CANCELLED"),
        (errors.ReaderStalledError("slow"), "CANCELLED"),
        (errors.UnavailableError("drain", retry_after=1.0), "UNAVAILABLE"),
        (errors.InternalError("id"), "INTERNAL"),
    ],
)
def test_distinct_codes_case_E10(error: errors.ServerError, code: str) -> None:
    status = to_status(error)
    assert code_pb2.Code.Name(status.code) == code
    assert status.message == str(error)


def test_overload_tells_when_to_come_back_case_E8() -> None:
    status = to_status(errors.OverloadedError("full", reason="waiting", retry_after=1.5))
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(retry)
    assert (info.reason, info.domain, dict(info.metadata)) == ("OVERLOADED", "firsttoken", {"limit": "waiting"})
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.5


@pytest.mark.parametrize("letter", ["m", "é", "模", "🙂"])
def test_long_texts_are_cut_in_the_middle_between_characters(letter: str) -> None:
    status = to_status(errors.InvalidRequestError("field", f"begins {letter * 5000} ends"))
    bad = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad)
    for text in (status.message, bad.field_violations[0].description):
        assert "begins" in text
        assert text.endswith("ends")
        assert "bytes left out" in text
        assert "\ufffd" not in text
    # Percent-encoded, and again in base64: below the 8 KiB of metadata that peers take.
    assert len(quote(status.message)) + len(status.SerializeToString()) * 4 / 3 < 7000
