"""A rank's side of the socket: reports, orders, and the end when supervisor or mpirun have gone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from concurrent.futures import Future

import structlog

from server.ranks.messages import Drain, Ended, FromRank, Hello, Report, line, to_rank
from server.ranks.parent import die_if_orphaned, die_with_parent

log = structlog.get_logger(__name__)

LOOK = 0.25
"""Seconds between two looks at who our parent is."""
LAST_WORDS = 2.0
"""Seconds that a rank has for its streams' statuses once the job cannot go on."""


class Link:
    """``trouble`` is resolved, once, with why the job cannot go on; soon afterwards the process is ended, whoever still hangs.

    A drain arrives as SIGTERM to this very process, which is what draining is on any other engine.
    """

    def __init__(self, address: str, rank: int) -> None:
        """Join the supervisor. Raises OSError where it has gone already."""
        self._parent = os.getppid()
        die_with_parent()
        die_if_orphaned(self._parent)
        self.trouble: Future[str] = Future()
        self._writing = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(address)
        self._socket.settimeout(LOOK)
        self._over = False
        self._send(Hello(rank, os.getpid()))
        threading.Thread(target=self._listen, name="supervisor-link", daemon=True).start()

    def report(self, state: str) -> None:
        self._send(Report(state))

    def ended(self, status: int) -> None:
        """This rank goes by itself; from now on the supervisor's end is no trouble."""
        self._over = True
        self._send(Ended(status))

    def _send(self, message: FromRank) -> None:
        with self._writing, contextlib.suppress(OSError):  # where nobody listens, the reading side says so
            self._socket.sendall(line(message))

    def _listen(self) -> None:
        received = b""
        while True:
            try:
                chunk = self._socket.recv(4096)
            except TimeoutError:
                if os.getppid() != self._parent:
                    self._give_up("mpirun has gone")
                    return
                continue
            except OSError:
                chunk = b""
            if not chunk:
                self._give_up("the supervisor has gone")
                return
            *lines, received = (received + chunk).split(b"\n")
            for text in lines:
                self._obey(text)

    def _obey(self, text: bytes) -> None:
        order = to_rank(text)
        if isinstance(order, Drain):
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._give_up(order.why)

    def _give_up(self, why: str) -> None:
        """Tell the server, and see to it that the process ends."""
        if self._over or self.trouble.done():
            return
        log.error("the job cannot go on", why=why)
        self.trouble.set_result(why)
        timer = threading.Timer(LAST_WORDS, lambda: os._exit(1))
        timer.daemon = True
        timer.start()
