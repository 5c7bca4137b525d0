"""What may go wrong for a client, as one hierarchy. server/rpc/status.py alone maps it to gRPC statuses.

ServerError
├── InvalidRequestError      the request can never be served as it is: names the field, the limit and the value given
│   └── NotBuiltError        the field exists in the protocol and is not built yet
├── UnknownModelError        no such model here
├── UnauthenticatedError     no credentials, or none that count
├── PermissionDeniedError    known, and not permitted to do this
├── PreconditionError        an operator's call that the server's state does not allow; nothing was changed
├── DuplicateRequestError    a request of this id is alive
├── NotOfferedError          the protocol has such a call, and this server does not
├── OverloadedError          a cap is reached; carries the delay after which to try again
├── DeadlineError            a deadline of the client's passed (or certainly will)
├── RequestCancelledError    the client, or an operator, ended the request
│   └── ReaderStalledError   the client took nothing off its stream for too long
├── UnavailableError         draining, not ready, or the engine died
└── InternalError            a fault of ours: logged with an id, the client gets the id and no text
"""

from __future__ import annotations


class ServerError(Exception):
    """Root. ``str(error)`` is written for clients, except for InternalError."""

    request_id = ""
    """The request that it ended, as its client knows it; empty where there was none yet."""


class InvalidRequestError(ServerError):
    """``field`` is the path in the protocol message, e.g. ``sampling.top_p``."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class NotBuiltError(InvalidRequestError):
    def __init__(self, field: str) -> None:
        super().__init__(field, "is part of the protocol but not built yet; leave it unset")


class UnknownModelError(ServerError):
    pass


class UnauthenticatedError(ServerError):
    pass


class PermissionDeniedError(ServerError):
    pass


class PreconditionError(ServerError):
    pass


class DuplicateRequestError(ServerError):
    pass


class NotOfferedError(ServerError):
    pass


class OverloadedError(ServerError):
    """``reason`` is a metric label; ``retry_after`` is in seconds."""

    def __init__(self, message: str, *, reason: str, retry_after: float) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class DeadlineError(ServerError):
    pass


class RequestCancelledError(ServerError):
    pass


class ReaderStalledError(RequestCancelledError):
    pass


class UnavailableError(ServerError):
    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class InternalError(ServerError):
    pass
