"""The HTTP port, for those who operate the server: /metrics, /healthz, /readyz."""

from __future__ import annotations

import logging
from ipaddress import IPv6Address, ip_address

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CONTENT_TYPE_LATEST

from server.config_ports import HttpConfig
from server.readiness import Readiness, State
from server.telemetry.metrics import Metrics


def _is_local(remote: str | None) -> bool:
    """Whether a peer's address is this machine's own."""
    try:
        address = ip_address(remote or "")
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


class _NoBlame(logging.Filter):
    """What a peer sends is no fault of ours: one line instead of a stack, and none of its bytes."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg, record.args = f"an HTTP request was refused: {type(error).__name__}, {error.code}", ()
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.exc_info = None
        return True


_log = logging.getLogger(__name__)
_log.addFilter(_NoBlame())


class HttpPort:
    """Runs on the same event loop as gRPC. Each answer is O(1) and queues behind no request."""

    def __init__(self, config: HttpConfig, readiness: Readiness, metrics: Metrics) -> None:
        self._config = config
        self._readiness = readiness
        self._metrics = metrics
        app = web.Application()
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/healthz", self._show_health)
        app.router.add_get("/readyz", self._show_readiness)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, logger=_log)

    async def start(self) -> int:
        """Listen; returns the port. Raises OSError where it is taken."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._config.host, self._config.port, reuse_port=False)
        try:
            await site.start()
        except OSError as error:
            where = f"{self._config.host}:{self._config.port}"
            raise OSError(f"http.port: cannot listen on {where}; is another server running there?") from error
        addresses = self._runner.addresses
        return int(addresses[0][1])

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _show_metrics(self, request: web.Request) -> web.Response:
        if not self._config.remote_metrics and not _is_local(request.remote):
            raise web.HTTPForbidden(text="/metrics is shown to this machine only (http.remote_metrics)\n")
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _show_health(self, _: web.Request) -> web.Response:
        """Alive: false only where a restart would help."""
        failed = self._readiness.state is State.FAILED
        return web.Response(text=self._readiness.state.value + "\n", status=503 if failed else 200)

    async def _show_readiness(self, _: web.Request) -> web.Response:
        return web.Response(text=self._readiness.state.value + "\n", status=200 if self._readiness.ready else 503)
