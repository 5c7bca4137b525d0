"""Operators tend the prefix cache of a running server: over the wire, through the client library and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from firsttoken import (
    AccessError,
    ArgumentError,
    AsyncClient,
    CallError,
    Client,
    ConflictError,
    InvalidRequestError,
    OverloadedError,
)
from tests.e2e.process import ROOT, served
from tests.e2e.whole_server import serving
from tests.rpc.test_access import ACME, ADMIN, OTHER, access_file

PROMPT = "A system prompt that very many will share. " * 8
"""344 tokens: the simulated tokenizer has one a byte. 10 blocks of 32."""
BLOCK = 32


async def reused(client: AsyncClient, text: str, salt: str = "") -> int:
    stream = client.generate(text, max_tokens=1, cache_salt=salt)
    await stream.text()
    return stream.final.usage.cached_tokens


async def test_warm_pin_list_unpin_clear() -> None:
    async with serving("simulated", lifecycle__warm_up=False) as (app, _), _client(app.grpc_port) as client:
        warmed = await client.warm_prefix(PROMPT)
        assert (warmed.prompt_tokens, warmed.cached_tokens) == (len(PROMPT), 0)
        assert await reused(client, PROMPT + "Hello") >= len(PROMPT) // BLOCK * BLOCK
        pinned = await client.pin_prefix(PROMPT, seconds=60)
        assert (pinned.blocks, pinned.tokens) == (len(PROMPT) // BLOCK, len(PROMPT) // BLOCK * BLOCK)
        assert pinned.in_use
        assert pinned.pinned_for is not None
        assert 0 < pinned.pinned_for <= 60
        hottest = await client.list_prefixes()
        assert hottest[0].name == pinned.name
        assert hottest[0].reuses >= 1
        await client.warm_prefix("What nobody will ask again. " * 8)
        cleared = await client.clear_cache()
        assert (cleared.forgotten_blocks > 0, cleared.kept_blocks) == (True, pinned.blocks)
        assert await reused(client, PROMPT + "Again") >= pinned.tokens
        again = await client.pin_prefix(prefix=pinned.name, seconds=120)
        assert again.pinned_for is not None
        assert 60 < again.pinned_for <= 120
        assert await client.unpin_prefix(pinned.name)
        assert not await client.unpin_prefix(pinned.name)
        assert (await client.clear_cache()).kept_blocks == 0
        assert await reused(client, PROMPT + "Gone?") == 0


async def test_what_cannot_be_pinned_is_refused_by_name() -> None:
    async with serving("simulated", lifecycle__warm_up=False) as (app, _), _client(app.grpc_port) as client:
        for fields, kind, words in (
            ({"prompt": "short", "seconds": 60}, InvalidRequestError, "prompt: must have at least 32 tokens"),
            ({"prompt": PROMPT, "seconds": 0}, InvalidRequestError, "time_to_live: must be above 0"),
            ({"prompt": PROMPT, "seconds": 1e9}, InvalidRequestError, "time_to_live: must be above 0, up to"),
            ({"prefix": "xyz", "seconds": 1}, InvalidRequestError, "prefix: must be 64 hexadecimal digits"),
            ({"prefix": "00" * 32, "seconds": 1}, ConflictError, "prefix: nothing is cached under 00"),
            ({"prompt": PROMPT, "seconds": 1, "tenant": "nobody"}, InvalidRequestError, "tenant: there is none"),
            ({"seconds": 1}, ArgumentError, "either a prompt or messages"),
            ({"prompt": PROMPT, "prefix": "00" * 32, "seconds": 1}, ArgumentError, "prefix: its name says all"),
        ):
            with pytest.raises(kind, match=words):
                await client.pin_prefix(**fields)
        with pytest.raises(InvalidRequestError, match="most: must be from 0 to 1000, it is -1"):
            await client.list_prefixes(-1)


async def test_pins_cannot_starve_the_server() -> None:
    """The pool holds more than one sequence of the greatest length; what is beyond that may be pinned."""
    async with serving("simulated", lifecycle__warm_up=False) as (app, _), _client(app.grpc_port) as client:
        info = await client.server_info()
        size = info.limits.max_prompt_tokens

        async def pin_all() -> None:
            for number in range(200):
                await client.pin_prefix([number + 1] * size, seconds=600)

        with pytest.raises(OverloadedError, match="pinned blocks"):
            await pin_all()
        assert await reused(client, "z" * size) == 0, "the longest prompt still fits"
        await client.clear_cache(pinned=True)


async def test_an_executor_keeps_its_own_cache_and_can_be_warmed() -> None:
    async with serving("simulated-executor") as (app, _), _client(app.grpc_port) as client:
        assert (await client.warm_prefix(PROMPT)).prompt_tokens == len(PROMPT)
        with pytest.raises(CallError) as refused:
            await client.list_prefixes()
        assert refused.value.status == "UNIMPLEMENTED"


async def test_only_operators_may_and_what_they_warm_is_the_tenants(tmp_path: Path) -> None:
    file = access_file(tmp_path)
    async with serving("simulated", access__file=file, lifecycle__warm_up=False) as (app, _):
        address = f"127.0.0.1:{app.grpc_port}"
        async with (
            AsyncClient(address, token=ADMIN) as admin,
            AsyncClient(address, token=ACME) as acme,
            AsyncClient(address, token=OTHER) as other,
        ):
            for call in (
                acme.warm_prefix(PROMPT),
                acme.pin_prefix(PROMPT, seconds=1),
                acme.unpin_prefix("00" * 32),
                acme.list_prefixes(),
                acme.clear_cache(),
            ):
                with pytest.raises(AccessError):
                    await call
            await admin.pin_prefix(PROMPT, seconds=60, tenant="acme", cache_salt="blue")
            found = [await reused(client, PROMPT + "!", salt) for client in (admin, other) for salt in ("", "blue")]
            assert found == [0, 0, 0, 0]
            assert await reused(acme, PROMPT + "?") == 0
            assert await reused(acme, PROMPT + "?", "blue") >= len(PROMPT) // BLOCK * BLOCK
            await admin.clear_cache(pinned=True)


def test_the_command() -> None:
    with served() as server:

        def firsttoken(*words: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "firsttoken", "cache", *words, "--address", server.target]
            return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

        warmed = firsttoken("warm", PROMPT)
        assert (warmed.returncode, warmed.stdout) == (0, f"{len(PROMPT)} tokens, 0 of them cached before\n")
        pinned = json.loads(firsttoken("pin", PROMPT, "--for", "2m", "--json").stdout)
        assert 60 < pinned["pinned_for"] <= 120
        assert pinned["blocks"] == len(PROMPT) // BLOCK
        first, *_ = firsttoken("list", "--most", "1").stdout.splitlines()
        assert pinned["name"] in first
        assert "pinned for" in first
        assert firsttoken("pin", pinned["name"], "--for", "1h").returncode == 0
        assert firsttoken("unpin", pinned["name"]).returncode == 0
        again = firsttoken("unpin", pinned["name"])
        assert (again.returncode, "nothing is pinned under" in again.stderr) == (1, True)
        assert "0 in use or pinned" in firsttoken("clear", "--pinned").stdout
        assert firsttoken("list").stdout == "nothing is cached\n"
        assert firsttoken("list", "--json").stdout == ""
        wrong = firsttoken("pin", PROMPT, "--for", "soon")
        assert (wrong.returncode, "--for: must be as 90s" in wrong.stderr) == (1, True)
        with Client(server.target) as client:
            assert client.list_prefixes() == []
            client.warm_prefix(PROMPT)
            assert [prefix.blocks for prefix in client.list_prefixes(1)] == [len(PROMPT) // BLOCK]


def _client(port: int) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{port}")
