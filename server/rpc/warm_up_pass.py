"""How the server's own warm-up gets in while nobody else does."""

from __future__ import annotations

import hmac
import secrets

from server.readiness import Readiness, State
from server.rpc.context import CallContext

WARM_UP_KEY = "firsttoken-warm-up"
"""The metadata that carries the secret."""


class WarmUpPass:
    """A secret that this process draws at its start, good only until it is ready."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness
        self.secret = secrets.token_hex(16)

    def admits(self, context: CallContext) -> bool:
        if self._readiness.state is not State.STARTING:
            return False
        given = dict(context.invocation_metadata() or ()).get(WARM_UP_KEY, "")
        return hmac.compare_digest(str(given).encode(), self.secret.encode())
