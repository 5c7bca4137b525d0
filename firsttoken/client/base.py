"""What the sync and the async client have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from firsttoken.client.channels import DEFAULT_ADDRESS, Connections, Stubs, Tls, stays_on_this_machine
from firsttoken.client.options import GenerateOptions
from firsttoken.client.patience import Patience
from firsttoken.client.requests import generate_request
from firsttoken.client.retries import Attempts, RetryPolicy
from firsttoken.errors import ArgumentError


class BaseClient:
    """Not for use by itself."""

    _grpc: ClassVar[Any]
    """``grpc`` or ``grpc.aio``."""

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        tls: Tls | None = None,
        token: str | Callable[[], str] | None = None,
        token_in_clear: bool = False,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        channels: int = 1,
    ) -> None:
        """``address`` is any gRPC target (``host:port``, ``unix:/path``). ``metadata`` goes with every call, lower-case keys.
        ``token`` is the bearer token, or a function that gives it, asked before each call (quick: it runs in the caller). It is refused
        where it would cross a network unencrypted, unless ``token_in_clear``: a proxy beside you does the encryption.
        ``timeout`` in seconds holds for every call that gives none of its own; ``math.inf`` = no limit. Left out: generations get what
        the server publishes for their class (:mod:`firsttoken.client.patience`), other calls have no limit. ``channels``: see
        :mod:`firsttoken.client.channels`. Connects on first use. Raises ArgumentError."""
        self._connections = Connections(self._grpc, address, tls, channels)
        self._address = address
        if token is not None and tls is None and not token_in_clear and not stays_on_this_machine(address):
            raise ArgumentError(f"token: would be sent to {address} unencrypted; set tls, or token_in_clear=True")
        self._token = token
        self._fixed_metadata = tuple((metadata or {}).items())
        self._timeout = timeout
        self._retry = retry
        self._patience = Patience()

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with a call that is made now."""
        token = self._token() if callable(self._token) else self._token
        return self._fixed_metadata if token is None else (*self._fixed_metadata, ("authorization", f"Bearer {token}"))

    def _attempts(self, timeout: float | None) -> Attempts:
        timeout = self._timeout if timeout is None else timeout
        return Attempts(self._retry, None if timeout == math.inf else timeout)

    def _generation(
        self, prompt: str | Sequence[int] | None, options: GenerateOptions, *, whole: bool = False
    ) -> tuple[Callable[[float | None], Any], Attempts]:
        """How to send this request, with so many seconds left, and how often that may be done. ``whole``: answered at once."""
        request = generate_request(prompt, options)
        stubs = self._connections.next()
        method = stubs.generation.Complete if whole else stubs.generation.Generate
        timeout = options.get("timeout")
        if timeout is None and self._timeout is None:
            timeout = self._patience.seconds(request)
            if self._patience.is_due():
                self._ask_timeouts(stubs)
        return lambda left: method(request, timeout=left, metadata=self._metadata), self._attempts(timeout)

    def _ask_timeouts(self, stubs: Stubs) -> None:
        """Ask the server in the background, and let :class:`Patience` learn. Never raises."""
        raise NotImplementedError
