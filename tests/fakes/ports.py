"""Ports for servers that start later, or again."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20_000, 32_000
"""Below the ports that Linux gives to whoever asks for any (32768 and up): none of these is taken by a passer-by before it is used."""


def unused_port() -> int:
    """One that nobody listens on now. Drawn, so that two runs on one machine do not meet."""
    dice = random.SystemRandom()
    while True:
        with socket.socket() as probe:
            port = dice.randint(FIRST, LAST)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
