"""What the driver needs of a wire: encode ahead, send at the moment, be told of each message, give up."""

from __future__ import annotations

from typing import Protocol

import msgspec

from loadtest.http2.pool import Security
from loadtest.prompts import Ids
from loadtest.record import Usage


class Ask(msgspec.Struct, frozen=True):
    """One request, whatever the wire. Exactly one of ``ids`` and ``text`` is None."""

    ids: Ids | None
    text: str | None
    max_tokens: int
    priority: str
    salt: str
    ttft_deadline: float | None
    deadline: float | None
    ignore_end: bool
    stalls: bool


class TargetFacts(msgspec.Struct, frozen=True):
    """What a server says of itself, as far as its wire can say it."""

    kind: str
    model: str = ""
    engine: str = ""
    vocab_size: int | None = None
    max_context: int | None = None
    max_sequences: int | None = None
    block_size: int | None = None


class LoadSample(msgspec.Struct, frozen=True):
    """The server's own view of its load at one moment."""

    running: int
    waiting: int
    waiting_tokens: int
    kv_utilisation: float
    kv_cached: float


class Measurement(Protocol):
    """Told by a transport what happens to one request. Every ``now`` is ``time.monotonic()``."""

    def on_content(self, tokens: int, now: float, *, ids: list[int] | None = None, text: str = "") -> None:
        """A message with content came. ``ids`` or ``text``, as the wire carries it, feeds the next turn of a conversation."""
        ...

    def on_usage(self, usage: Usage) -> None: ...

    def on_over(self, status: str, detail: str, now: float) -> None:
        """The request is over. Exactly once, and last."""
        ...


class Call(Protocol):
    """A request on its way."""

    def cancel(self, status: str, detail: str) -> None:
        """End it from our side: on_over comes with this status, before this returns or shortly after. Idempotent."""
        ...


class Transport(Protocol):
    """One server over one wire. One event loop only."""

    takes_ids: bool
    """Prompts may be token ids."""

    async def open(self) -> TargetFacts:
        """Connect. Raises TargetError."""
        ...

    def encode(self, ask: Ask) -> bytes:
        """The request's bytes: what can be done before its moment. Raises WorkloadError where the wire cannot say it."""
        ...

    async def start(self, ask: Ask, body: bytes, measurement: Measurement) -> Call:
        """Send. Does not wait for an answer; raises TargetError where the server cannot be reached."""
        ...

    async def load(self) -> LoadSample | None:
        """None where the wire does not tell."""
        ...

    async def close(self) -> None: ...


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the load goes. A value, so that processes can share it."""

    wire: str
    """"native", "kserve" or "openai"."""
    address: str
    """host:port, or a URL for "openai"."""
    model: str = ""
    connections: int = 1
    security: Security = Security()
    headers: dict[str, str] = {}
    endpoint: str = ""
    """"openai": "completions" or "chat"; "kserve": "text" or "tokens". Empty: the first of them."""
    tokenizer: str | None = None
    """tokenizer.json of the model: needed where the wire takes text only."""
    send_text: bool = False
    """Send text although the wire takes ids."""
