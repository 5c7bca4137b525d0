"""Who may call what: every call's credentials are looked at before its handler runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc

from server.access.caller import set_caller
from server.access.directory import Directory
from server.access.tenant import EVERYONE, Tenant
from server.errors import PermissionDeniedError
from server.rpc.context import CallContext
from server.rpc.interceptors import Details, Handler, wrap_behaviour
from server.rpc.warm_up_pass import WarmUpPass

FREE = ("/grpc.health.v1.Health/",)
"""Without credentials: probes have none, and readiness is no secret."""
OPERATORS_ONLY = ("/firsttoken.v1.Operations/",)
FOR_ALL_TENANTS = frozenset({"/firsttoken.v1.Operations/GetServerInfo"})
"""Of these: clients need the limits."""


class AccessGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Inside CallGuard, which makes statuses of what this raises and counts them."""

    def __init__(self, directory: Directory, warm_up: WarmUpPass) -> None:
        self._directory = directory
        self._warm_up = warm_up

    async def intercept_service(
        self, continuation: Callable[[Details], Awaitable[Handler]], details: Details
    ) -> Handler:
        handler = await continuation(details)
        if handler is None or details.method.startswith(FREE):
            return handler
        method: str = details.method

        def admit(_: object, context: CallContext) -> None:
            set_caller(self._admit(method, context))

        return wrap_behaviour(handler, admit)

    def _admit(self, method: str, context: CallContext) -> Tenant:
        """Raises UnauthenticatedError and PermissionDeniedError."""
        if self._directory.open or self._warm_up.admits(context):
            return EVERYONE
        tenant = self._directory.tenant(_authorization(context), certificate_names(context.auth_context()))
        if method.startswith(OPERATORS_ONLY) and method not in FOR_ALL_TENANTS and not tenant.operator:
            raise PermissionDeniedError(f"{method.rpartition('/')[2]} is for operators")
        return tenant


def _authorization(context: CallContext) -> str | None:
    values = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return None if not values else ", ".join(str(value) for value in values)  # as HTTP joins them: two are malformed


def certificate_names(auth_context: Any) -> Iterator[str]:  # noqa: ANN401 - gRPC has no types
    """Who the verified client certificate says the caller is: its alternative names, or, where it has none, its common name."""
    names = auth_context.get("x509_subject_alternative_name") or auth_context.get("x509_common_name") or ()
    for name in names:
        yield name.decode("utf-8", "replace")
