"""How the clients connect.

One channel is one connection, and carries many calls at once; it is enough for a hundred streams and more. A process that
reads several hundred fast streams gains from a few channels (``channels=4``): calls are dealt to them in turn.

Keep-alive: after 30 s without traffic the connection is probed, also while a long prompt is computed in silence; 10 s without an
answer end it. The server permits a probe every 10 s. A lost connection is tried again after 0.1 s, then ever more rarely, down
to every 2 s, so that a server that comes back is soon found. Messages of up to 64 MiB are received; how much may be sent is the
server's to say (ServerInfo.limits.max_message_bytes).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from os import PathLike
from pathlib import Path
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2_grpc

from firsttoken.errors import ArgumentError
from protos.firsttoken.v1 import generation_pb2_grpc, operations_pb2_grpc

DEFAULT_ADDRESS = "localhost:50051"
MAX_RECEIVE_BYTES = 64 * 2**20

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # else channels to one address would share one connection
)


@dataclass(frozen=True, slots=True)
class Tls:
    """Encrypt the connection and check the server's certificate."""

    root_certificates: bytes | None = None
    """PEM; None = the machine's own."""
    certificate_chain: bytes | None = None
    """PEM of the client's own certificate, where the server asks for one."""
    private_key: bytes | None = None
    """PEM."""

    @classmethod
    def from_files(
        cls,
        root_certificates: str | PathLike[str] | None = None,
        certificate_chain: str | PathLike[str] | None = None,
        private_key: str | PathLike[str] | None = None,
    ) -> Self:
        """The same, read from PEM files. Raises OSError."""
        files = (root_certificates, certificate_chain, private_key)
        return cls(*(None if file is None else Path(file).read_bytes() for file in files))

    def __post_init__(self) -> None:
        if (self.certificate_chain is None) != (self.private_key is None):
            raise ArgumentError("tls: certificate_chain and private_key go together")


class Stubs:
    """The callables of one channel, grpc's sync or async one."""

    def __init__(self, channel: Any) -> None:  # noqa: ANN401 - grpc has no types
        self.channel = channel
        self.generation = generation_pb2_grpc.GenerationStub(channel)
        self.operations = operations_pb2_grpc.OperationsStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)


class Connections:
    """Some channels to one address, opened on first use. ``module`` is ``grpc`` or ``grpc.aio``."""

    def __init__(self, module: Any, address: str, tls: Tls | None, channels: int) -> None:  # noqa: ANN401 - as above
        if channels < 1:
            raise ArgumentError(f"channels: must be at least 1, not {channels}")
        self._open: Callable[[], Any] = lambda: _open(module, address, tls)
        self._count = channels
        self._stubs: list[Stubs] = []
        self._turns = itertools.count()

    def next(self) -> Stubs:
        """The stubs whose turn it is."""
        turn = next(self._turns) % self._count
        while len(self._stubs) <= turn:
            self._stubs.append(Stubs(self._open()))
        return self._stubs[turn]

    def take(self) -> Iterable[Any]:
        """The open channels, for their owner to close; later calls open new ones."""
        stubs, self._stubs = self._stubs, []
        return [stub.channel for stub in stubs]


def stays_on_this_machine(address: str) -> bool:
    """Whether a gRPC target is a loopback address or a Unix socket."""
    target = address.removeprefix("dns:").lstrip("/").removeprefix("ipv4:").removeprefix("ipv6:")
    host = target[1 : target.find("]")] if target.startswith("[") else target.rpartition(":")[0] or target
    try:
        local = ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return local or address.startswith(("unix:", "unix-abstract:"))


def _open(module: Any, address: str, tls: Tls | None) -> Any:  # noqa: ANN401 - as above
    if tls is None:
        return module.insecure_channel(address, options=OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.root_certificates, tls.private_key, tls.certificate_chain)
    return module.secure_channel(address, credentials, options=OPTIONS)
