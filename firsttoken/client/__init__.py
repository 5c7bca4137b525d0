"""The client library: ``from firsttoken import Client, AsyncClient``."""

from firsttoken.client.aio_client import AsyncClient
from firsttoken.client.aio_stream import AsyncStream
from firsttoken.client.channels import Tls
from firsttoken.client.requests import GenerateOptions
from firsttoken.client.retries import RetryPolicy
from firsttoken.client.stream import Stream
from firsttoken.client.sync_client import Client
from firsttoken.client.values import (
    CachedPrefix,
    Capabilities,
    ClearedCache,
    ClientTimeouts,
    Delta,
    Final,
    FinishReason,
    Limits,
    Load,
    Message,
    Priority,
    Retention,
    ServerInfo,
    Timings,
    Usage,
    Warmed,
)
from firsttoken.errors import (
    AccessError,
    ArgumentError,
    CallCancelledError,
    CallError,
    ConflictError,
    DeadlineError,
    FirstTokenError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    ServerFaultError,
    StreamStateError,
    UnavailableError,
)

__all__ = [
    "AccessError",
    "ArgumentError",
    "AsyncClient",
    "AsyncStream",
    "CachedPrefix",
    "CallCancelledError",
    "CallError",
    "Capabilities",
    "ClearedCache",
    "Client",
    "ClientTimeouts",
    "ConflictError",
    "DeadlineError",
    "Delta",
    "Final",
    "FinishReason",
    "FirstTokenError",
    "GenerateOptions",
    "InvalidRequestError",
    "Limits",
    "Load",
    "Message",
    "NotFoundError",
    "OverloadedError",
    "Priority",
    "Retention",
    "RetryPolicy",
    "ServerFaultError",
    "ServerInfo",
    "Stream",
    "StreamStateError",
    "Timings",
    "Tls",
    "UnavailableError",
    "Usage",
    "Warmed",
]
