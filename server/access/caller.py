"""Whose call this is, for whatever runs on its behalf: set once per call, before its handler runs."""

from __future__ import annotations

from contextvars import ContextVar

from server.access.tenant import EVERYONE, Tenant

_caller: ContextVar[Tenant] = ContextVar("caller", default=EVERYONE)


def set_caller(tenant: Tenant) -> None:
    """For the current task, and those that it starts."""
    _caller.set(tenant)


def caller() -> Tenant:
    return _caller.get()
