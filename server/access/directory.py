"""From a call's credentials to its tenant. Whatever is wrong with them, the caller hears the same words after the same work."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable

import structlog

from server.access.file import Grant, Registered
from server.access.tenant import EVERYONE, Tenant
from server.errors import UnauthenticatedError

log = structlog.get_logger(__name__)

MISSING = "authentication required: send the metadata authorization: Bearer TOKEN"
REFUSED = "the credentials are not valid"
"""Said of unknown, expired and malformed ones alike."""
CAUSES = ("missing", "malformed", "unknown", "expired", "certificate")


def hash_token(token: str) -> str:
    """What the access file holds in a token's place."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def new_token() -> str:
    """256 random bits, in a form that secret scanners can be taught."""
    return "ft_" + secrets.token_urlsafe(32)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


class Directory:
    """What the access file last said. The event loop asks; replaced whole by :meth:`replace` when the file changes."""

    def __init__(self, failed: Callable[[str], None], now: Callable[[], dt.datetime] = _now) -> None:
        """``failed`` is told the cause of each refusal, one of CAUSES. Open to everyone until :meth:`replace`."""
        self._failed = failed
        self._now = now
        self._key = secrets.token_bytes(32)
        self._registered: Registered | None = None
        self._grants: dict[bytes, tuple[str, Grant]] = {}

    @property
    def open(self) -> bool:
        """No access file: whoever reaches the server may use all of it."""
        return self._registered is None

    def replace(self, registered: Registered) -> None:
        """From the next call on this holds. Calls that run go on."""
        self._grants = {self._index(digest): (digest, grant) for digest, grant in registered.tokens.items()}
        self._registered = registered

    def tenant(self, authorization: str | None, certificate_names: Iterable[str]) -> Tenant:
        """Whose call it is. A token decides where there is one, then a certificate. Raises UnauthenticatedError."""
        if self._registered is None:
            return EVERYONE
        if authorization is not None:
            return self._by_token(authorization)
        names = list(certificate_names)
        for name in names:
            if name in self._registered.certificates:
                return self._registered.certificates[name]
        if names:
            self._failed("certificate")
            raise UnauthenticatedError(REFUSED)
        if self._registered.anonymous is not None:
            return self._registered.anonymous
        self._failed("missing")
        raise UnauthenticatedError(MISSING)

    def named(self, name: str) -> Tenant | None:
        """The tenant of this name, for who acts in its place; None where there is none."""
        return None if self._registered is None else self._registered.tenants.get(name)

    def _by_token(self, authorization: str) -> Tenant:
        scheme, _, token = authorization.partition(" ")
        digest = hash_token(token)
        # Looked up under a key of this process's own, so that how long it takes says nothing about what is stored.
        known, grant = self._grants.get(self._index(digest), ("", None))
        matches = hmac.compare_digest(known.ljust(64, "-"), digest)
        if scheme.lower() != "bearer" or not token:
            self._failed("malformed")
        elif not matches or grant is None:
            self._failed("unknown")
        elif grant.expires is not None and grant.expires <= self._now():
            log.info("an expired token was used", tenant=grant.tenant.name, expired=grant.expires.isoformat())
            self._failed("expired")
        else:
            return grant.tenant
        raise UnauthenticatedError(REFUSED)

    def _index(self, digest: str) -> bytes:
        return hmac.digest(self._key, digest.encode(), "sha256")
