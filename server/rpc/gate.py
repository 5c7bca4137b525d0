"""The port's gate, put together: certificates, tenants, limits, and what is read again when its files change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from server.access.directory import Directory
from server.access.file import read_access_file
from server.access.quotas import Quotas
from server.config import Config
from server.readiness import Readiness
from server.rpc.access_guard import AccessGuard
from server.rpc.connections import ConnectionCalls
from server.rpc.interceptors import CallGuard, ParseGuard
from server.rpc.tls import ServerCertificates
from server.rpc.warm_up_pass import WarmUpPass
from server.telemetry.metrics import Metrics
from server.watched_files import WatchedFiles


class Gate:
    """Event loop only. Made once, before the port opens."""

    def __init__(self, config: Config, readiness: Readiness, metrics: Metrics) -> None:
        """Reads the files. Raises AccessFileError, TlsError and OSError: a server that was told to check never starts unchecked."""
        self._config = config
        self._metrics = metrics
        self.warm_up = WarmUpPass(readiness)
        self.quotas = Quotas()
        self.directory = Directory(lambda cause: metrics.authentication_failures.labels(cause).inc())
        self.certificates = ServerCertificates(config.tls) if config.tls.certificate else None
        if config.access.file:
            self.directory.replace(read_access_file(Path(config.access.file)))

    def interceptors(self, count: Callable[[str, str], None]) -> list[object]:
        """Outermost first: what goes wrong becomes a status and is counted, then who calls, then what they say."""
        calls = ConnectionCalls(self._config.grpc.max_connection_calls)
        return [CallGuard(count, calls), AccessGuard(self.directory, self.warm_up), ParseGuard()]

    def watched(self) -> Iterator[WatchedFiles]:
        """What changes without a restart."""
        if self._config.access.file:
            yield self._watch("access", [Path(self._config.access.file)], self._reload_access)
        if self.certificates is not None:
            yield self._watch("tls", self.certificates.files, self.certificates.reload)

    def _watch(self, name: str, files: list[Path], reload: Callable[[], None]) -> WatchedFiles:
        period = self._config.access.reload_period
        return WatchedFiles(name, files, reload, period=period, reloaded=self._count_reload)

    def _reload_access(self) -> None:
        self.directory.replace(read_access_file(Path(self._config.access.file)))

    def _count_reload(self, name: str, ok: bool) -> None:
        self._metrics.reloads.labels(name, "ok" if ok else "failed").inc()
