"""From a failed gRPC call to the client's own error."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from firsttoken.errors import ERROR_OF_STATUS, CallError, ServerFaultError

_DETAILS_KEY = "grpc-status-details-bin"


def error_of(failure: grpc.RpcError) -> CallError:
    """The error that a failed call (sync or async) stands for, with what the server said in its details."""
    status = failure.code().name
    field = reason = retry_after = request_id = None
    for detail in _details(failure):
        if isinstance(detail, error_details_pb2.BadRequest) and detail.field_violations:
            field = detail.field_violations[0].field
        elif isinstance(detail, error_details_pb2.ErrorInfo):
            reason = detail.reason
            request_id = detail.metadata.get("request_id") or None
        elif isinstance(detail, error_details_pb2.RetryInfo):
            retry_after = detail.retry_delay.ToTimedelta().total_seconds()
    kind = ERROR_OF_STATUS.get(status, ServerFaultError)
    message = failure.details() or status
    return kind(message, status=status, field=field, reason=reason, retry_after=retry_after, request_id=request_id)


_DETAIL_KINDS = (error_details_pb2.BadRequest, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo)


def _details(failure: grpc.RpcError) -> Iterator[Message]:
    trailers = dict(failure.trailing_metadata() or ())
    status = status_pb2.Status()
    try:
        status.ParseFromString(trailers.get(_DETAILS_KEY, b""))
    except DecodeError:
        return  # a proxy's or another server's bytes: the code and the message still hold
    for packed in status.details:
        for kind in _DETAIL_KINDS:
            detail = kind()
            if packed.Unpack(detail):
                yield detail
