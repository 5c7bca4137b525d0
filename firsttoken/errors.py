"""What the client and the command can end with, as one hierarchy. Light to import.

FirstTokenError
├── CommandError           a command cannot do what it was asked to; not part of the client
├── ArgumentError          the call's arguments make no request (also a ValueError); nothing was sent
├── StreamStateError       the stream was closed, or has not ended yet
└── CallError              the call ended with a status other than OK
    ├── InvalidRequestError    the request can never be served as it is; `field` names what is wrong
    ├── NotFoundError          no such model
    ├── ConflictError          a request of this id is alive, or the server's state does not allow the call
    ├── AccessError            no identity, or not permitted
    ├── OverloadedError        a cap is reached; try again after `retry_after` seconds
    ├── DeadlineError          the call's `timeout` or `ttft_deadline` passed, or certainly will
    ├── CallCancelledError     cancelled, by this client or by the server's operator
    ├── UnavailableError       no connection, the server is draining or not ready, or its engine died
    └── ServerFaultError       a fault of the server's; its log knows more
"""

from __future__ import annotations


class FirstTokenError(Exception):
    """Root."""


class CommandError(FirstTokenError):
    """A command cannot do what it was asked to. ``str(error)`` is one sentence for its user; the exit status is 1."""


class ArgumentError(FirstTokenError, ValueError):
    """The arguments of a call make no request. Nothing was sent."""


class StreamStateError(FirstTokenError):
    """A stream was used in a state that does not allow it."""


class CallError(FirstTokenError):
    """A call ended with a status other than OK. ``str(error)`` is the server's sentence."""

    def __init__(
        self,
        message: str,
        *,
        status: str,
        field: str | None = None,
        reason: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """The gRPC status code's name, e.g. ``"RESOURCE_EXHAUSTED"``."""
        self.field = field
        """The path of the field that is wrong, e.g. ``"sampling.top_p"``, where the server named one."""
        self.reason = reason
        """The server's word for programs, e.g. ``"OVERLOADED"``, where it gave one."""
        self.retry_after = retry_after
        """Seconds after which to try again, where the server gave them."""
        self.request_id = request_id
        """The request's name in the server's logs, where it had got one."""


class InvalidRequestError(CallError):
    """The request can never be served as it is; ``field`` names what is wrong, where the server said."""


class NotFoundError(CallError):
    """No such model."""


class ConflictError(CallError):
    """A request of this id is alive, or the server's state does not allow the call; nothing was changed."""


class AccessError(CallError):
    """No identity, or not permitted."""


class OverloadedError(CallError):
    """A cap is reached; try again after ``retry_after`` seconds."""


class DeadlineError(CallError):
    """The call's ``timeout`` or ``ttft_deadline`` passed, or certainly will."""


class CallCancelledError(CallError):
    """Cancelled, by this client or by the server's operator."""


class UnavailableError(CallError):
    """No connection, the server is draining or not ready, or its engine died."""


class ServerFaultError(CallError):
    """A fault of the server's; its log knows more."""


ERROR_OF_STATUS: dict[str, type[CallError]] = {
    "INVALID_ARGUMENT": InvalidRequestError,
    "OUT_OF_RANGE": InvalidRequestError,
    "NOT_FOUND": NotFoundError,
    "ALREADY_EXISTS": ConflictError,
    "ABORTED": ConflictError,
    "FAILED_PRECONDITION": ConflictError,
    "UNAUTHENTICATED": AccessError,
    "PERMISSION_DENIED": AccessError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "DEADLINE_EXCEEDED": DeadlineError,
    "CANCELLED": CallCancelledError,
    "UNAVAILABLE": UnavailableError,
}
"""Any other status is a ServerFaultError."""
