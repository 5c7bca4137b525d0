"""A tenant: somebody who sends requests, what they may ask for, and whom they share computed prefixes with."""

from __future__ import annotations

import msgspec

from server.engine import PriorityClass
from server.errors import PermissionDeniedError

ALL_CLASSES = tuple(PriorityClass)


class Tenant(msgspec.Struct, frozen=True):
    """Facts out of the access file. None means without limit."""

    name: str
    """Empty for everybody where no access file is configured."""
    salt: bytes | None = None
    """Tenants of equal salt share KV blocks. None: a request's own salt alone decides."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Tokens of prompts and of outputs."""
    max_concurrent: int | None = None
    """Requests at once, waiting and running."""
    classes: tuple[PriorityClass, ...] = ALL_CLASSES
    """Others are refused."""
    ceiling: PriorityClass = PriorityClass.INTERACTIVE
    """More urgent ones are lowered to this."""
    operator: bool = False
    """May call what concerns the server as a whole."""

    def priority(self, asked: PriorityClass | None) -> PriorityClass:
        """The class that a request runs in which asked for ``asked``; None = for none, which gets the best there is.

        Raises PermissionDeniedError.
        """
        if asked is None:
            return self.best_class()
        granted = max(asked, self.ceiling)
        if granted not in self.classes:
            permitted = ", ".join(kind.name.lower() for kind in self.classes)
            raise PermissionDeniedError(
                f"priority: {granted.name.lower()} is not permitted to you; you may use {permitted}"
            )
        return PriorityClass(granted)

    def best_class(self) -> PriorityClass:
        """The most urgent class that it may use. Raises ValueError where its own rules leave none."""
        usable = [kind for kind in self.classes if kind >= self.ceiling]
        if not usable:
            raise ValueError(f"classes: none of them is at or below the ceiling, {self.ceiling.name.lower()}")
        return min(usable)

    def block_salt(self, given: bytes) -> bytes:
        """What keys this tenant's KV blocks. The length goes first, so that no two pairs of salts give the same bytes."""
        if self.salt is None:
            return given
        return len(self.salt).to_bytes(4, "big") + self.salt + given


EVERYONE = Tenant(name="", operator=True)
"""Whoever calls a server without an access file: it is open on loopback, to its own machine's users."""
