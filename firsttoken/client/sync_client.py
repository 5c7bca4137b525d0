"""The sync client."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from firsttoken.client import replies, requests
from firsttoken.client.base import BaseClient
from firsttoken.client.channels import Stubs
from firsttoken.client.options import Conversation, GenerateOptions, PrefixOptions, Tools
from firsttoken.client.outputs import Answer
from firsttoken.client.patience import ASKING
from firsttoken.client.readiness import ReadinessPoll
from firsttoken.client.retries import Attempts
from firsttoken.client.stream import Stream
from firsttoken.client.values import CachedPrefix, ClearedCache, Load, ServerInfo, Step, Warmed
from protos.firsttoken.v1 import operations_pb2


class Client(BaseClient):
    """Talks to one firsttoken server. Any thread may use it; make one and keep it: it holds the connection.

    ::

        with Client("localhost:50051") as client:
            print(client.generate("The capital of France is", max_tokens=16).text())
    """

    _grpc = grpc

    def generate(self, prompt: str | Sequence[int] | None = None, **options: Unpack[GenerateOptions]) -> Stream:
        """Continue a text, token ids, or (``messages=``) a conversation. The request is sent at once; read the stream for its
        output. Every option: :class:`firsttoken.client.options.GenerateOptions`. Raises ArgumentError."""
        return Stream(*self._generation(prompt, options))

    def complete(self, prompt: str | Sequence[int] | None = None, **options: Unpack[GenerateOptions]) -> Answer:
        """The same request, answered once and whole. Costs a message instead of a stream; leaving it is up to its ``timeout``.

        Raises ArgumentError and CallErrors."""
        return replies.answer_of(self._send(*self._generation(prompt, options, whole=True)))

    def tokenize(
        self,
        prompt: str | None = None,
        *,
        messages: Conversation | None = None,
        tools: Tools | None = None,
        timeout: float | None = None,
    ) -> list[int]:
        """The ids that generate() would see. Raises ArgumentError and CallErrors."""
        request = requests.tokenize_request(prompt, messages, tools)
        return list(self._call(self._connections.next().generation.Tokenize, request, timeout).ids)

    def detokenize(self, ids: Sequence[int], *, show_special_tokens: bool = False, timeout: float | None = None) -> str:
        """The text of ids. Raises ArgumentError and CallErrors."""
        request = requests.detokenize_request(ids, show_special_tokens)
        return str(self._call(self._connections.next().generation.Detokenize, request, timeout).text)

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """Versions, model and limits. Raises CallErrors."""
        request = operations_pb2.GetServerInfoRequest()
        return replies.server_info_of(self._call(self._connections.next().operations.GetServerInfo, request, timeout))

    def load(self, *, timeout: float | None = None) -> Load:
        """The load right now. Raises CallErrors."""
        request = operations_pb2.GetLoadRequest()
        return replies.load_of(self._call(self._connections.next().operations.GetLoad, request, timeout))

    def abort(self, request_id: str, *, timeout: float | None = None) -> bool:
        """End the request of this id: one of your own, or as an operator anybody's. False where none is alive. Raises CallErrors."""
        request = operations_pb2.AbortRequest(request_id=request_id)
        return bool((self._call(self._connections.next().operations.Abort, request, timeout)).aborted)

    def steps(self, last: int = 0, *, timeout: float | None = None) -> list[Step]:
        """The engine's last steps, oldest first; 0 = all that it keeps. For operators. Raises CallErrors."""
        request = operations_pb2.GetStepsRequest(last=last)
        reply = self._call(self._connections.next().operations.GetSteps, request, timeout)
        return [replies.step_of(step) for step in reply.steps]

    def load_engine(self, directory: str, *, replace: bool = False, timeout: float | None = None) -> ServerInfo:
        """Have the server serve another engine, without a pause; for operators. ``directory`` is on its machine. What it serves then.
        ``replace``: where memory does not hold both; the one that serves is closed first, and requests are refused meanwhile.

        Raises ConflictError, and then nothing was changed, and CallErrors. A ``timeout`` does not stop the server's loading."""
        request = operations_pb2.LoadEngineRequest(directory=directory, replace=replace)
        self._call(self._connections.next().operations.LoadEngine, request, timeout)
        return self.server_info(timeout=timeout)

    def warm_prefix(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        timeout: float | None = None,
        **options: Unpack[PrefixOptions],
    ) -> Warmed:
        """Compute a prompt ahead of its use, so that the prefix cache has it; for operators. Raises ArgumentError and CallErrors."""
        request = requests.warm_request(prompt, options)
        return replies.warmed_of(self._call(self._connections.next().operations.WarmPrefix, request, timeout))

    def pin_prefix(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        seconds: float,
        prefix: str | None = None,
        timeout: float | None = None,
        **options: Unpack[PrefixOptions],
    ) -> CachedPrefix:
        """Keep the full blocks of a prompt, or what is cached under the name ``prefix``, for so many seconds; for operators. Raises
        ArgumentError, OverloadedError where pins would leave too few blocks, ConflictError where nothing is cached under the name, and
        CallErrors."""
        request = requests.pin_request(prompt, seconds, prefix, options)
        reply = self._call(self._connections.next().operations.PinPrefix, request, timeout)
        return replies.prefix_of(reply.prefix)

    def unpin_prefix(self, prefix: str, *, timeout: float | None = None) -> bool:
        """End a pin before its time; False where there was none. For operators. Raises CallErrors."""
        request = operations_pb2.UnpinPrefixRequest(prefix=prefix)
        return bool((self._call(self._connections.next().operations.UnpinPrefix, request, timeout)).unpinned)

    def list_prefixes(self, most: int = 20, *, timeout: float | None = None) -> list[CachedPrefix]:
        """The prefixes that were reused most, at most so many; for operators. Raises CallErrors."""
        request = operations_pb2.ListPrefixesRequest(most=most)
        reply = self._call(self._connections.next().operations.ListPrefixes, request, timeout)
        return [replies.prefix_of(prefix) for prefix in reply.prefixes]

    def clear_cache(self, *, pinned: bool = False, timeout: float | None = None) -> ClearedCache:
        """Forget what is cached, and what is ``pinned`` if that is said; for operators. Raises CallErrors."""
        request = operations_pb2.ClearCacheRequest(pinned=pinned)
        return replies.cleared_of(self._call(self._connections.next().operations.ClearCache, request, timeout))

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the server is ready to generate. Raises UnavailableError after ``timeout`` seconds, saying why not."""
        poll = ReadinessPoll(self._address, timeout)
        while not poll.ready:
            try:
                reply = self._connections.next().health.Check(
                    poll.request, timeout=poll.attempt_timeout(), metadata=self._metadata
                )
                poll.answered(reply)
            except grpc.RpcError as failure:
                poll.failed(failure)
            time.sleep(poll.pause())

    def close(self) -> None:
        """Close the connection; streams that still run are cancelled. Idempotent."""
        for channel in self._connections.take():
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask_timeouts(self, stubs: Stubs) -> None:
        request = operations_pb2.GetServerInfoRequest()
        asked = stubs.operations.GetServerInfo.future(request, timeout=ASKING, metadata=self._metadata)
        asked.add_done_callback(self._learn_timeouts)

    def _learn_timeouts(self, answered: Any) -> None:  # noqa: ANN401 - grpc has no types
        """On a thread of gRPC's."""
        if answered.code() is grpc.StatusCode.OK:
            self._patience.learn(answered.result())

    def _call(self, method: Callable[..., Any], request: Any, timeout: float | None) -> Any:  # noqa: ANN401 - grpc has no types
        return self._send(lambda left: method(request, timeout=left, metadata=self._metadata), self._attempts(timeout))

    def _send(self, send: Callable[[float | None], Any], attempts: Attempts) -> Any:  # noqa: ANN401 - as above
        while True:
            try:
                return send(attempts.remaining())
            except grpc.RpcError as failure:
                # Headers mean that the server has taken the request in.
                time.sleep(attempts.next_delay(failure, taken=bool(len(failure.initial_metadata() or ()))))
