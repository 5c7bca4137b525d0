"""A recording of the traffic: when requests came, how long they were, which prefixes they shared. Never a text, never a token.

`firsttoken load` and `firsttoken simulate` replay it. A block's hash is keyed with a secret that dies with the process: equal prefixes are
seen to be equal within a recording, and nobody can try out what a prompt may have been, nor compare two recordings. Tenants get pseudonyms.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import secrets
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import structlog

from server.engine import GenerationRequest

log = structlog.get_logger(__name__)

FORMAT, VERSION = "firsttoken-recording", 1
MAX_WAITING = 10_000
"""Requests that may wait to be written; more are left out and counted. A disk that hangs must not fill the memory."""
HASH_BYTES = 12


class Row(msgspec.Struct, frozen=True):
    at: float
    """Seconds after the recording began."""
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[str, ...]
    """A hash for each full block of the prompt, chained over all before it."""
    priority: str
    tenant: str


class Recorder:
    """Any thread may call; hashing and writing are a thread's of its own, so a request pays for a queue's put."""

    def __init__(self, path: Path, *, block_size: int, began: float) -> None:
        """Creates the file anew, readable by its owner alone. ``began``: time.monotonic(). Raises OSError."""
        self.left_out = 0
        self._block_size = block_size
        self._began = began
        self._key = secrets.token_bytes(32)
        self._path = path
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode({"format": FORMAT, "version": VERSION, "block_size": block_size}) + b"\n")
        self._waiting: queue.Queue[tuple[GenerationRequest, int] | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._write, name="recorder", daemon=True)
        self._thread.start()

    def put(self, request: GenerationRequest, output_tokens: int) -> None:
        """A request is over. Never blocks."""
        try:
            self._waiting.put_nowait((request, output_tokens))
        except queue.Full:
            self.left_out += 1

    def close(self, timeout: float) -> None:
        """Write what waits, for ``timeout`` seconds at most. Idempotent."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(timeout)
        if self.left_out:
            log.warning("the recording is not complete", left_out=self.left_out)

    def _write(self) -> None:
        try:
            with self._path.open("ab") as file:
                while (item := self._waiting.get()) is not None:
                    file.write(msgspec.json.encode(self._row(*item)) + b"\n")
                    if self._waiting.empty():
                        file.flush()
        except OSError as error:
            log.error("the recording ended", file=str(self._path), why=str(error))  # noqa: TRY400 - a full disk has no stack

    def _row(self, request: GenerationRequest, output_tokens: int) -> Row:
        tenant = self._hash(b"tenant" + request.tenant.encode()) if request.tenant else ""
        return Row(
            at=round(max(0.0, request.arrival - self._began), 6),
            prompt_tokens=len(request.prompt),
            output_tokens=output_tokens,
            prefix=tuple(self._prefix(request)),
            priority=request.priority.name.lower(),
            tenant=tenant,
        )

    def _prefix(self, request: GenerationRequest) -> Iterator[str]:
        # Salts keep prefixes apart in the cache, so they must here.
        before = b"salt" + request.cache_salt
        for block in _blocks(request.prompt, self._block_size):
            before = self._hash(before + b"".join(token.to_bytes(4, "big") for token in block)).encode()
            yield before.decode()

    def _hash(self, data: bytes) -> str:
        return hashlib.blake2b(data, digest_size=HASH_BYTES, key=self._key).hexdigest()


def _blocks(tokens: tuple[int, ...], size: int) -> Iterable[tuple[int, ...]]:
    return (tokens[place : place + size] for place in range(0, len(tokens) - size + 1, size))
