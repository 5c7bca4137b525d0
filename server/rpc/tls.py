"""The port's certificates, read again when their files change: the next handshake gets the new ones, running streams notice nothing."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc

from server.config_ports import TlsConfig


class TlsError(ValueError):
    """The files cannot be used together; the text names them."""


class ServerCertificates:
    """``reload`` is for one thread at a time; gRPC's own threads ask at each handshake."""

    def __init__(self, config: TlsConfig) -> None:
        """Raises TlsError and OSError."""
        self._config = config
        self._current = self._read()
        self._given: object = None
        self.files = [Path(path) for path in (config.certificate, config.key, config.client_ca) if path]

    def credentials(self) -> Any:  # noqa: ANN401 - gRPC has no types
        """What ``add_secure_port`` takes. Where there is a client CA, a client without a certificate of its gets no connection."""
        return grpc.dynamic_ssl_server_credentials(
            self._current, self._fetch, require_client_authentication=bool(self._config.client_ca)
        )

    def reload(self) -> None:
        """Blocking. Raises TlsError and OSError, and then the old ones stay."""
        self._current = self._read()

    def _fetch(self) -> object:
        """Asked at each handshake: what is new, or None. Handing over the same twice would only cost gRPC time."""
        current = self._current
        if current is self._given:
            return None
        self._given = current
        return current

    def _read(self) -> object:
        config = self._config
        certificate, key = Path(config.certificate).read_bytes(), Path(config.key).read_bytes()
        authorities = Path(config.client_ca).read_bytes() if config.client_ca else None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Rotation replaces the files one after the other; a pair that does not match must never reach a handshake.
            context.load_cert_chain(config.certificate, config.key, password=_no_password)
            if authorities is not None:
                context.load_verify_locations(cadata=authorities.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError) as error:
            files = ", ".join(path for path in (config.certificate, config.key, config.client_ca) if path)
            raise TlsError(f"tls: {files}: no certificate chain with its key, in PEM: {error}") from error
        if (certificate, key) != (Path(config.certificate).read_bytes(), Path(config.key).read_bytes()):
            raise TlsError(f"tls: {config.certificate} and {config.key} changed while they were read")
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authorities)


def _no_password() -> bytes:
    """OpenSSL would ask the terminal."""
    raise ssl.SSLError("the key is encrypted, and there is nobody to ask for its password")
