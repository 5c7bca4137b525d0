"""The access file: what it grants, and what it refuses by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.access.directory import hash_token
from server.access.file import AccessFileError, Registered, read_access_file
from server.engine import PriorityClass

HASH = hash_token("t")


def read(folder: Path, text: str) -> Registered:
    path = folder / "access.toml"
    path.write_text(text)
    return read_access_file(path)


def test_a_tenant_has_what_its_table_says(tmp_path: Path) -> None:
    registered = read(
        tmp_path,
        f"""
        anonymous = "guest"
        [tenants.acme]
        tokens = [{{ sha256 = "{HASH}", expires = 2030-01-01T00:00:00Z }}]
        certificates = ["acme.example"]
        requests_per_minute = 60
        tokens_per_minute = 1000
        max_concurrent = 4
        classes = ["standard", "batch"]
        ceiling = "standard"
        operator = true
        [tenants.guest]
        """,
    )
    acme = registered.tokens[HASH].tenant
    assert registered.certificates == {"acme.example": acme}
    assert (acme.name, acme.requests_per_minute, acme.tokens_per_minute, acme.max_concurrent) == ("acme", 60, 1000, 4)
    assert (acme.classes, acme.ceiling) == ((PriorityClass.STANDARD, PriorityClass.BATCH), PriorityClass.STANDARD)
    assert acme.operator
    assert registered.anonymous is not None
    assert (registered.anonymous.name, registered.anonymous.operator) == ("guest", False)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[tenants.a]\nspeed = 1", "speed"),
        ("[tenants.a]\nrequests_per_minute = 0", "requests_per_minute"),
        ('[tenants.a]\ntokens = [{ sha256 = "secret-in-clear" }]', "tenants.a.tokens[0].sha256"),
        (
            f'[tenants.a]\ntokens = [{{ sha256 = "{HASH}", expires = 2030-01-01T00:00:00 }}]',
            "tenants.a.tokens[0].expires",
        ),
        (
            f'[tenants.a]\ntokens = [{{ sha256 = "{HASH}" }}]\n[tenants.b]\ntokens = [{{ sha256 = "{HASH}" }}]',
            "tenants.b.tokens[0].sha256",
        ),
        ('[tenants.a]\ncertificates = ["x"]\n[tenants.b]\ncertificates = ["x"]', "tenants.b.certificates"),
        ('[tenants.a]\nclasses = ["urgent"]', "urgent"),
        ('[tenants.a]\nclasses = ["interactive"]\nceiling = "batch"', "tenants.a.classes"),
        ('anonymous = "b"\n[tenants.a]', "'b'"),
        ('anonymous = "a"\n[tenants.a]\noperator = true', "operator"),
        ("[tenants", "access.toml"),
    ],
)
def test_a_mistake_is_named_and_no_secret_is_quoted(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(AccessFileError) as caught:
        read(tmp_path, text)
    assert named in str(caught.value)
    assert "secret-in-clear" not in str(caught.value)
