"""firsttoken.v1.Operations, the part that tends the prefix cache: warm, pin, unpin, list, clear."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
from google.protobuf.duration_pb2 import Duration

from protos.firsttoken.v1 import generation_pb2
from protos.firsttoken.v1 import operations_pb2 as pb
from protos.firsttoken.v1.operations_pb2_grpc import OperationsServicer
from server.access.caller import caller, set_caller
from server.access.tenant import Tenant
from server.cache_tasks import CachedPrefix, ClearCache, ListPrefixes, PinPrefix, PinPrompt, UnpinPrefix
from server.engine import Engine, GenerationRequest, RequestFinished
from server.errors import InternalError, InvalidRequestError, NotOfferedError
from server.prefix_desk import PrefixDesk
from server.rpc.context import CallContext
from server.rpc.opening import Opener

LONGEST_PIN = 30 * 24 * 3600.0
"""Seconds."""
USUAL_LIST, LONGEST_LIST = 20, 1000
NAME_DIGITS = 64


class PrefixOperations(OperationsServicer):
    """Event loop only."""

    def __init__(
        self, engine: Callable[[], Engine], opener: Opener, tenant_named: Callable[[str], Tenant | None]
    ) -> None:
        """``engine`` raises UnavailableError while there is none."""
        self._engine = engine
        self._opener = opener
        self._tenant_named = tenant_named

    async def WarmPrefix(self, request: pb.WarmPrefixRequest, context: CallContext) -> pb.WarmPrefixResponse:
        _, end = await self._compute(request, context)
        return pb.WarmPrefixResponse(prompt_tokens=end.prompt_tokens, cached_tokens=end.cached_tokens)

    async def PinPrefix(self, request: pb.PinPrefixRequest, context: CallContext) -> pb.PinPrefixResponse:
        desk, seconds = self._desk(), _seconds(request)
        if request.HasField("prompt") == bool(request.prefix):
            raise InvalidRequestError("prompt", "or prefix must be set, and not both")
        if request.prefix:
            for field in ("cache_salt", "tenant"):
                if getattr(request, field):
                    raise InvalidRequestError(field, "goes with a prompt; a prefix's name says it already")
            task: PinPrefix | PinPrompt = PinPrefix(_name(request.prefix), seconds)
        else:
            computed, _ = await self._compute(request, context)
            task = PinPrompt(computed.prompt, computed.cache_salt, seconds)
        return pb.PinPrefixResponse(prefix=_message(await asyncio.wrap_future(desk.pin(task))))

    async def UnpinPrefix(self, request: pb.UnpinPrefixRequest, context: CallContext) -> pb.UnpinPrefixResponse:
        task = UnpinPrefix(_name(request.prefix))
        unpinned: bool = await asyncio.wrap_future(self._desk().unpin(task))
        return pb.UnpinPrefixResponse(unpinned=unpinned)

    async def ListPrefixes(self, request: pb.ListPrefixesRequest, context: CallContext) -> pb.ListPrefixesResponse:
        if not 0 <= request.most <= LONGEST_LIST:
            raise InvalidRequestError("most", f"must be from 0 to {LONGEST_LIST}, it is {request.most}")
        task = ListPrefixes(request.most or USUAL_LIST)
        found = await asyncio.wrap_future(self._desk().list(task))
        return pb.ListPrefixesResponse(prefixes=[_message(prefix) for prefix in found])

    async def ClearCache(self, request: pb.ClearCacheRequest, context: CallContext) -> pb.ClearCacheResponse:
        cleared = await asyncio.wrap_future(self._desk().clear(ClearCache(request.pinned)))
        return pb.ClearCacheResponse(forgotten_blocks=cleared.forgotten, kept_blocks=cleared.kept)

    def _desk(self) -> PrefixDesk:
        desk = self._engine().prefixes
        if desk is None:
            raise NotOfferedError("this engine keeps a prefix cache of its own, which cannot be tended")
        return desk

    async def _compute(
        self, request: pb.WarmPrefixRequest | pb.PinPrefixRequest, context: CallContext
    ) -> tuple[GenerationRequest, RequestFinished]:
        """A request for no new tokens, by the caller, under the salt of the tenant that is to find it."""
        if request.tenant:
            tenant = self._tenant_named(request.tenant)
            if tenant is None:
                raise InvalidRequestError("tenant", f"there is none of the name {request.tenant!r}")
            set_caller(msgspec.structs.replace(caller(), salt=tenant.salt))
        wanted = generation_pb2.GenerateRequest(prompt=request.prompt, max_tokens=0, cache_salt=request.cache_salt)
        stream = (await self._opener.open(wanted, context, self._opener.clock())).stream
        async with self._opener.reading(stream, context):
            while await stream.read():
                pass
            if stream.finished is None:
                raise InternalError("the prompt's stream ended without an end")
            return stream.request, stream.finished


def _seconds(request: pb.PinPrefixRequest) -> float:
    if not request.HasField("time_to_live"):
        raise InvalidRequestError("time_to_live", "is required")
    seconds = request.time_to_live.seconds + request.time_to_live.nanos / 1e9
    if not 0 < seconds <= LONGEST_PIN:
        raise InvalidRequestError("time_to_live", f"must be above 0, up to {LONGEST_PIN:.0f} s, it is {seconds:g} s")
    return seconds


def _name(digits: str) -> bytes:
    if len(digits) != NAME_DIGITS or not all(digit in "0123456789abcdef" for digit in digits):
        raise InvalidRequestError("prefix", f"must be {NAME_DIGITS} hexadecimal digits, as ListPrefixes tells them")
    return bytes.fromhex(digits)


def _message(prefix: CachedPrefix) -> pb.CachedPrefix:
    message = pb.CachedPrefix(
        name=prefix.name.hex(),
        tokens=prefix.tokens,
        blocks=prefix.blocks,
        bytes=prefix.size,
        reuses=prefix.reuses,
        in_use=prefix.in_use,
    )
    if prefix.pinned_for is not None:
        left = Duration()
        left.FromNanoseconds(round(max(0.0, prefix.pinned_for) * 1e9))
        message.pinned_for.CopyFrom(left)
    return message
