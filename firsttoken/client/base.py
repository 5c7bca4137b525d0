"""What the sync and the async client have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from firsttoken.client.channels import DEFAULT_ADDRESS, Connections, Tls
from firsttoken.client.requests import GenerateOptions, generate_request
from firsttoken.client.retries import Attempts, RetryPolicy


class BaseClient:
    """Not for use by itself."""

    _grpc: ClassVar[Any]
    """``grpc`` or ``grpc.aio``."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: Tls | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        channels: int = 1,
    ) -> None:
        """``address`` is any gRPC target (``host:port``, ``unix:/path``). ``metadata`` goes with every call, lower-case keys.
        ``timeout`` in seconds holds for every call that gives none of its own; None = no limit. ``channels``: see
        :mod:`firsttoken.client.channels`. Connects on first use. Raises ArgumentError."""
        self._connections = Connections(self._grpc, address, tls, channels)
        self._address = address
        self._metadata = tuple((metadata or {}).items())
        self._timeout = timeout
        self._retry = retry

    def _attempts(self, timeout: float | None) -> Attempts:
        return Attempts(self._retry, self._timeout if timeout is None else timeout)

    def _generation(
        self, prompt: str | Sequence[int] | None, options: GenerateOptions
    ) -> tuple[Callable[[float | None], Any], Attempts]:
        """How to send this request, with so many seconds left, and how often that may be done."""
        request = generate_request(prompt, options)
        method, metadata = self._connections.next().generation.Generate, self._metadata
        return lambda left: method(request, timeout=left, metadata=metadata), self._attempts(options.get("timeout"))
