"""How long a generation may take where nobody says: what the server publishes, asked for in the background.

A request never waits for it. The first ones go out with :data:`UNTIL_KNOWN`, and where the server cannot be asked all do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from protos.firsttoken.v1 import generation_pb2, operations_pb2

UNTIL_KNOWN = 600.0
"""Seconds."""
REFRESH = 30.0
"""Seconds after which the next request asks again."""
ASKING = 5.0
"""Seconds that the server has to answer."""

_FIELDS = {
    generation_pb2.PRIORITY_STANDARD: "standard",
    generation_pb2.PRIORITY_BATCH: "batch",
}


class Patience:
    """What is known. Any thread; the worst of a race is to ask twice."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: operations_pb2.ClientTimeouts | None = None
        self._ask_at = clock()

    def is_due(self) -> bool:
        """Whether to ask now; then the next answer is no more due for a while, whether it comes or not."""
        now = self._clock()
        if now < self._ask_at:
            return False
        self._ask_at = now + REFRESH
        return True

    def learn(self, info: Any) -> None:  # noqa: ANN401 - grpc has no types
        """The server's answer. One that is older than this says nothing."""
        if info.HasField("client_timeouts"):
            self._known = info.client_timeouts

    def seconds(self, request: generation_pb2.GenerateRequest) -> float:
        """For a request of this class."""
        known = self._known
        if known is None:
            return UNTIL_KNOWN
        return float(getattr(known, _FIELDS.get(request.priority, "interactive"))) or UNTIL_KNOWN
