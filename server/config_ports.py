"""The knobs of the two ports, and of who may use them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Bytes = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=0, le=65535)]

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Section(BaseModel):
    """A frozen group of knobs that refuses what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class GrpcConfig(Section):
    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback opens the server to the network: set tls.* and access.file."""
    port: Port = 50051
    """0 lets the system choose; the chosen one is logged."""
    max_message_bytes: Annotated[Bytes, Field(ge=4096, le=256 * 1024 * 1024)] = 4 * 1024 * 1024
    """Largest message taken, in bytes. gRPC decodes on the event loop, so a huge one makes everybody wait."""
    min_ping_interval: Annotated[Seconds, Field(gt=0)] = 5.0
    """Clients that ping more often than this many seconds are cut off. Common clients ping each 10 to 30 s, with or without calls."""
    keepalive_time: Annotated[Seconds, Field(gt=0)] = 60.0
    """Seconds of silence after which the server itself pings a connection, to find dead peers."""
    keepalive_timeout: Annotated[Seconds, Field(gt=0)] = 20.0
    """Seconds that a pinged peer has to answer before its connection, and every stream on it, is dropped."""
    max_connection_age: Seconds = 0.0
    """Seconds after which a connection is asked to reconnect, so that load spreads over new replicas. 0: never."""
    max_connection_age_grace: Annotated[Seconds, Field(gt=0)] = 3600.0
    """Seconds that the streams of such a connection still have; must exceed the longest generation."""
    max_connection_idle: Seconds = 0.0
    """Seconds without calls after which a connection is closed. 0: never; the server's pings find those whose peer is gone."""
    max_connection_calls: Annotated[int, Field(ge=1)] = 1000
    """Calls open at once on one connection; more are refused with RESOURCE_EXHAUSTED."""
    max_metadata_bytes: Annotated[Bytes, Field(ge=4096, le=1024 * 1024)] = 16 * 1024
    """Largest header block of a call, in bytes as HTTP/2 counts them: names, values, and 32 for each."""
    reflection: bool = True
    """Let clients such as grpcurl list and describe the services."""


class TlsConfig(Section):
    certificate: str = ""
    """PEM file of the gRPC port's certificate chain. Empty: no TLS. Read again when it changes, without a restart."""
    key: str = ""
    """PEM file of its private key, unencrypted."""
    client_ca: str = ""
    """PEM file of the authorities for clients. When set, a client without a certificate of theirs gets no connection."""


class AccessConfig(Section):
    file: str = ""
    """TOML file of tenants: their tokens' hashes, certificates and limits. Empty: everyone may use everything."""
    reload_period: Annotated[Seconds, Field(gt=0)] = 1.0
    """Seconds between two looks at the access file and the certificates."""


class HttpConfig(Section):
    enabled: bool = True
    """Serve /metrics, /healthz and /readyz."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    remote_metrics: bool = False
    """Show /metrics to other machines, too, where host lets them in. /healthz and /readyz are always shown: probes need them."""
    port: Port = 8080
    """0 lets the system choose; the chosen one is logged."""
