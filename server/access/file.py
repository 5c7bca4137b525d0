"""The access file: tenants, the hashes of their tokens, the names in their certificates, and their limits. docs/security.md shows one.

A token is 256 random bits, so one round of SHA-256 protects it at rest as well as a slow hash would: nobody can try them all.
"""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

from server.access.tenant import Tenant
from server.engine import PriorityClass

HASH = re.compile(r"[0-9a-f]{64}")
CLASSES = {kind.name.lower(): kind for kind in PriorityClass}
Limit = Annotated[int, msgspec.Meta(ge=1)]


class AccessFileError(ValueError):
    """The file cannot be used; the text names the file, the tenant and the field. No secret is in it."""


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str
    """Of the token's ASCII bytes, hexadecimal."""
    expires: dt.datetime | None = None
    """With a time zone. None: never."""


class TenantEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: tuple[TokenEntry, ...] = ()
    certificates: tuple[str, ...] = ()
    """Names in client certificates: a subject alternative name (DNS name or URI), or the common name of one that has none."""
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    max_concurrent: Limit | None = None
    classes: tuple[str, ...] = tuple(CLASSES)
    ceiling: str = "interactive"
    salt: str = ""
    """Tenants with the same salt share computed prefixes. Empty: nobody shares with this one."""
    operator: bool = False


class AccessFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: dict[str, TenantEntry]
    anonymous: str = ""
    """The tenant of callers without credentials. Empty: there are none."""


class Grant(msgspec.Struct, frozen=True):
    """What a token stands for."""

    tenant: Tenant
    expires: dt.datetime | None


class Registered(msgspec.Struct, frozen=True):
    """What the file says, checked."""

    tokens: dict[str, Grant]
    """By SHA-256, hexadecimal."""
    certificates: dict[str, Tenant]
    anonymous: Tenant | None
    tenants: dict[str, Tenant] = {}
    """By name."""


def read_access_file(path: Path) -> Registered:
    """Blocking. Raises AccessFileError and OSError."""
    try:
        return register(msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), AccessFile))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, AccessFileError) as error:
        raise AccessFileError(f"{path}: {error}") from error


def register(file: AccessFile) -> Registered:
    """Raises AccessFileError."""
    tokens: dict[str, Grant] = {}
    certificates: dict[str, Tenant] = {}
    tenants = {name: _tenant(name, entry) for name, entry in file.tenants.items()}
    for name, entry in file.tenants.items():
        for place, token in enumerate(entry.tokens):
            _check_token(f"tenants.{name}.tokens[{place}]", token, known=tokens)
            tokens[token.sha256] = Grant(tenants[name], token.expires)
        for identity in entry.certificates:
            if identity in certificates or not identity:
                raise AccessFileError(f"tenants.{name}.certificates: {identity!r} is empty or stands there twice")
            certificates[identity] = tenants[name]
    return Registered(tokens, certificates, _anonymous(file.anonymous, tenants), tenants)


def _tenant(name: str, entry: TenantEntry) -> Tenant:
    unknown = [kind for kind in (*entry.classes, entry.ceiling) if kind not in CLASSES]
    if unknown or not name:
        raise AccessFileError(
            f"tenants.{name}: {unknown or 'the name'} must be one of {sorted(CLASSES)}, and not empty"
        )
    tenant = Tenant(
        name=name,
        # Its own name and a salt that somebody else may have chosen to be the same are told apart by their first byte.
        salt=b"s" + entry.salt.encode() if entry.salt else b"n" + name.encode(),
        requests_per_minute=entry.requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute,
        max_concurrent=entry.max_concurrent,
        classes=tuple(CLASSES[kind] for kind in entry.classes),
        ceiling=CLASSES[entry.ceiling],
        operator=entry.operator,
    )
    try:
        tenant.best_class()
    except ValueError as error:
        raise AccessFileError(f"tenants.{name}.{error}") from error
    return tenant


def _check_token(where: str, token: TokenEntry, *, known: dict[str, Grant]) -> None:
    if not HASH.fullmatch(token.sha256):
        raise AccessFileError(
            f"{where}.sha256: must be 64 hexadecimal digits in lower case, as `firsttoken token` prints them"
        )
    if token.sha256 in known:
        raise AccessFileError(f"{where}.sha256: this token stands there twice")
    if token.expires is not None and token.expires.tzinfo is None:
        raise AccessFileError(f"{where}.expires: needs a time zone, as in 2027-01-31T00:00:00Z")


def _anonymous(name: str, tenants: dict[str, Tenant]) -> Tenant | None:
    if not name:
        return None
    if name not in tenants:
        raise AccessFileError(f"anonymous: there is no tenant {name!r}, there are {sorted(tenants)}")
    if tenants[name].operator:
        raise AccessFileError(f"anonymous: {name!r} must not be an operator")
    return tenants[name]
