"""The one place that turns what went wrong into a gRPC status, with machine-readable details."""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from server.errors import (
    DeadlineError,
    DuplicateRequestError,
    InternalError,
    InvalidRequestError,
    NotBuiltError,
    NotOfferedError,
    OverloadedError,
    PermissionDeniedError,
    PreconditionError,
    ReaderStalledError,
    RequestCancelledError,
    ServerError,
    UnauthenticatedError,
    UnavailableError,
    UnknownModelError,
)

DOMAIN = "firsttoken"
MAX_TEXT_BYTES = 1000
"""Of one text in a status. A status travels as metadata, of which peers take 8 KiB: beyond that a client would hear of the metadata's
size instead. The text is there twice, once percent-encoded (up to three bytes for one) and once in base64."""

# Subclasses before their base: the first match decides. The reason is ErrorInfo's: for programs, never reworded.
TABLE: tuple[tuple[type[ServerError], int, str], ...] = (
    (NotBuiltError, code_pb2.INVALID_ARGUMENT, "NOT_BUILT"),
    (InvalidRequestError, code_pb2.INVALID_ARGUMENT, "INVALID_REQUEST"),
    (UnknownModelError, code_pb2.NOT_FOUND, "UNKNOWN_MODEL"),
    (UnauthenticatedError, code_pb2.UNAUTHENTICATED, "UNAUTHENTICATED"),
    (PermissionDeniedError, code_pb2.PERMISSION_DENIED, "PERMISSION_DENIED"),
    (PreconditionError, code_pb2.FAILED_PRECONDITION, "PRECONDITION"),
    (DuplicateRequestError, code_pb2.ALREADY_EXISTS, "DUPLICATE_REQUEST"),
    (NotOfferedError, code_pb2.UNIMPLEMENTED, "NOT_OFFERED"),
    (OverloadedError, code_pb2.RESOURCE_EXHAUSTED, "OVERLOADED"),
    (DeadlineError, code_pb2.DEADLINE_EXCEEDED, "DEADLINE"),
    (ReaderStalledError, code_pb2.CANCELLED, "READER_STALLED"),
    (RequestCancelledError, code_pb2.CANCELLED, "CANCELLED"),
    (UnavailableError, code_pb2.UNAVAILABLE, "UNAVAILABLE"),
    (InternalError, code_pb2.INTERNAL, "INTERNAL"),
)


def to_status(error: ServerError) -> status_pb2.Status:
    """``error`` as a google.rpc.Status: its code, its message, and details that a program can act on."""
    code, reason = next((code, reason) for kind, code, reason in TABLE if isinstance(error, kind))
    details: list[Message] = [_info(reason, error)]
    if isinstance(error, InvalidRequestError):
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=_short(error.problem))
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    retry_after = getattr(error, "retry_after", None)
    if retry_after is not None:
        details.append(error_details_pb2.RetryInfo(retry_delay=_duration(retry_after)))
    return status_pb2.Status(code=code, message=_short(str(error)), details=[_pack(detail) for detail in details])


def code_name(error: ServerError) -> str:
    """The status code's name, as a metric label."""
    return str(code_pb2.Code.Name(to_status(error).code))


def grpc_status(error: ServerError) -> grpc.Status:
    """What ``context.abort_with_status`` takes."""
    return rpc_status.to_status(to_status(error))


def _short(text: str) -> str:
    """``text``, its middle cut out where it is long: what a client sent may be quoted in it, and comes back whole."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_TEXT_BYTES:
        return text
    half = MAX_TEXT_BYTES // 2
    first, last = encoded[:half].decode(errors="ignore"), encoded[-half:].decode(errors="ignore")
    return f"{first} [{len(encoded) - 2 * half} bytes left out] {last}"


def _info(reason: str, error: ServerError) -> error_details_pb2.ErrorInfo:
    metadata = {"limit": error.reason} if isinstance(error, OverloadedError) else {}
    if error.request_id:
        metadata["request_id"] = error.request_id
    return error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)


def _duration(seconds: float) -> duration_pb2.Duration:
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=int((seconds - whole) * 1e9))


def _pack(message: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
