"""firsttoken: a production server for language models, its client library and its command.

Users import the client from here::

    from firsttoken import Client, AsyncClient

The names are loaded on first use: ``firsttoken --help`` needs neither gRPC nor an engine library.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firsttoken.client import (
        AccessError,
        Answer,
        ArgumentError,
        AsyncClient,
        AsyncStream,
        CachedPrefix,
        CallCancelledError,
        CallError,
        Capabilities,
        ClearedCache,
        Client,
        ClientTimeouts,
        Completion,
        ConflictError,
        DeadlineError,
        Delta,
        Final,
        FinishReason,
        FirstTokenError,
        GenerateOptions,
        InvalidRequestError,
        Limits,
        Load,
        Message,
        NotFoundError,
        OutputEnd,
        OverloadedError,
        PositionLogprobs,
        Priority,
        PromptEcho,
        Retention,
        RetryPolicy,
        ServerFaultError,
        ServerInfo,
        Step,
        StepRow,
        Stream,
        StreamStateError,
        Timings,
        Tls,
        TokenLogprob,
        UnavailableError,
        Usage,
        Warmed,
    )

__all__ = [
    "AccessError",
    "Answer",
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
    "Completion",
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
    "OutputEnd",
    "OverloadedError",
    "PositionLogprobs",
    "Priority",
    "PromptEcho",
    "Retention",
    "RetryPolicy",
    "ServerFaultError",
    "ServerInfo",
    "Step",
    "StepRow",
    "Stream",
    "StreamStateError",
    "Timings",
    "Tls",
    "TokenLogprob",
    "UnavailableError",
    "Usage",
    "Warmed",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module("firsttoken.client"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
