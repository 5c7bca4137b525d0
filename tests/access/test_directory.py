"""From credentials to a tenant: every refusal sounds alike."""

from __future__ import annotations

import datetime as dt

import pytest

from server.access.directory import MISSING, REFUSED, Directory, hash_token, new_token
from server.access.file import AccessFile, TenantEntry, TokenEntry, register
from server.access.tenant import EVERYONE, Tenant
from server.engine import PriorityClass
from server.errors import PermissionDeniedError, UnauthenticatedError

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def directory(failures: list[str], *, anonymous: str = "") -> Directory:
    made = Directory(failures.append, lambda: NOW)
    entries = {
        "a": TenantEntry(
            tokens=(TokenEntry(hash_token("good")), TokenEntry(hash_token("old"), NOW)), certificates=("a.example",)
        ),
        "b": TenantEntry(tokens=(TokenEntry(hash_token("other"), NOW + dt.timedelta(seconds=1)),)),
    }
    made.replace(register(AccessFile(entries, anonymous)))
    return made


def test_without_a_file_everyone_is_everything() -> None:
    made = Directory(lambda _: None)
    assert made.tenant("Bearer whatever", ["x"]) is EVERYONE
    assert made.tenant(None, []).operator


@pytest.mark.parametrize(
    ("authorization", "names", "tenant"),
    [
        ("Bearer good", [], "a"),
        ("bearer good", [], "a"),  # RFC 7235: the scheme has no case
        ("Bearer other", [], "b"),
        ("Bearer other", ["a.example"], "b"),  # a token decides
        (None, ["unknown", "a.example"], "a"),
    ],
)
def test_credentials_find_their_tenant(authorization: str | None, names: list[str], tenant: str) -> None:
    assert directory([]).tenant(authorization, names).name == tenant


@pytest.mark.parametrize(
    ("authorization", "names", "cause", "words"),
    [
        (None, [], "missing", MISSING),
        (None, ["unknown"], "certificate", REFUSED),
        ("Bearer wrong", ["a.example"], "unknown", REFUSED),  # never a step down to the certificate
        ("Bearer old", [], "expired", REFUSED),
        ("Basic good", [], "malformed", REFUSED),
        ("Bearer", [], "malformed", REFUSED),
        ("Bearer good, Bearer good", [], "unknown", REFUSED),
        (f"Bearer {hash_token('good')}", [], "unknown", REFUSED),  # the hash at rest is no key
        ("Bearer \ud800", [], "unknown", REFUSED),
    ],
)
@pytest.mark.parametrize("anonymous", ["", "b"])
def test_refusals_say_nothing_of_what_is_known(
    authorization: str | None, names: list[str], cause: str, words: str, anonymous: str
) -> None:
    failures: list[str] = []
    made = directory(failures, anonymous=anonymous)
    if cause == "missing" and anonymous:
        assert made.tenant(authorization, names).name == anonymous
        return
    with pytest.raises(UnauthenticatedError) as caught:
        made.tenant(authorization, names)
    assert (str(caught.value), failures) == (words, [cause])


def test_a_token_ends_with_the_file_that_names_it() -> None:
    failures: list[str] = []
    made = directory(failures)
    made.replace(register(AccessFile({"c": TenantEntry(tokens=(TokenEntry(hash_token("new")),))})))
    assert made.tenant("Bearer new", []).name == "c"
    with pytest.raises(UnauthenticatedError):
        made.tenant("Bearer good", [])


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43


def test_a_ceiling_lowers_and_a_class_that_is_not_permitted_is_refused() -> None:
    capped = Tenant(name="t", ceiling=PriorityClass.STANDARD)
    assert [capped.priority(kind) for kind in PriorityClass] == [1, 1, 2]
    assert capped.priority(None) is PriorityClass.STANDARD
    narrow = Tenant(name="t", classes=(PriorityClass.BATCH,))
    assert narrow.priority(None) is PriorityClass.BATCH
    with pytest.raises(PermissionDeniedError, match=r"interactive is not permitted to you; you may use batch"):
        narrow.priority(PriorityClass.INTERACTIVE)


def test_no_two_tenants_have_one_salt_unless_it_was_given_to_both() -> None:
    entries = {
        "ab": TenantEntry(),
        "a": TenantEntry(),
        "x": TenantEntry(salt="ab"),
        "y": TenantEntry(salt="ab"),
    }
    tokens = {name: hash_token(name) for name in entries}
    with_tokens = {
        name: TenantEntry(tokens=(TokenEntry(tokens[name]),), salt=entry.salt) for name, entry in entries.items()
    }
    registered = register(AccessFile(with_tokens))
    ab, a, x, y = (registered.tokens[tokens[name]].tenant for name in ("ab", "a", "x", "y"))
    assert ab.block_salt(b"") != a.block_salt(b"b")  # names and salts do not run into each other
    assert x.block_salt(b"s") == y.block_salt(b"s") != ab.block_salt(b"s")
    assert x.block_salt(b"s") != x.block_salt(b"t")
    assert EVERYONE.block_salt(b"s") == b"s"
