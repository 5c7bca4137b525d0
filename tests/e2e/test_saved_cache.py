"""A prefix cache that outlives its process: saved at SIGTERM and now and then before, restored at the next start."""

from __future__ import annotations

import signal
from pathlib import Path

import grpc
import pytest

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from tests.e2e.process import ServerProcess, served
from tests.e2e.test_serve_process import until
from tests.engines_built import default_engine

PREFIX = [1000 + 37 * place % 40_000 for place in range(512)]
BYTES = [65 + place % 26 for place in range(512)]
"""The same for the simulated vocabulary."""
RESTORED = 'firsttoken_cache_restores_total{outcome="restored"}'


def cached_tokens(server: ServerProcess, prompt: list[int], salt: str = "") -> int:
    with grpc.insecure_channel(server.target) as channel:
        request = pb.GenerateRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=prompt)), max_tokens=2, cache_salt=salt)
        *_, last = GenerationStub(channel).Generate(request)
        return int(last.final.usage.cached_tokens)


def end(server: ServerProcess) -> int:
    server.process.send_signal(signal.SIGTERM)
    return server.process.wait(90)


def said(server: ServerProcess, event: str) -> list[dict[str, object]]:
    return [line for line in server.log() if line["event"] == event]


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_restart_keeps_the_known_prefix(tmp_path: Path, real: bool) -> None:
    prefix, engine = (PREFIX, str(default_engine())) if real else (BYTES, "simulated:laptop")
    flags = ["--cache.save_path", str(tmp_path / "kv")]
    with served(*flags, engine=engine) as server:
        assert cached_tokens(server, [*prefix, 66], "mine") == 0
        assert end(server) == 0
        (line,) = said(server, "cache saved")
        assert int(str(line["blocks"])) >= 512 // 32
    with served(*flags, engine=engine) as server:
        assert server.metric(RESTORED) == 1
        assert server.metric("firsttoken_cache_restored_blocks") > 0
        assert server.metric('firsttoken_startup_seconds{phase="cache_restore"}') > 0
        assert cached_tokens(server, [*prefix, 77], "theirs") == 0
        assert cached_tokens(server, [*prefix, 77], "mine") == 512


def test_who_is_killed_loses_only_what_came_after_the_last_save(tmp_path: Path) -> None:
    flags = ["--cache.save_path", str(tmp_path / "kv"), "--cache.save_interval", "0.2"]
    with served(*flags) as server:
        cached_tokens(server, [*BYTES, 66])
        until(lambda: server.metric("firsttoken_cache_saved_blocks") >= len(BYTES) // 32)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(60)
    with served(*flags) as server:
        assert cached_tokens(server, [*BYTES, 77]) == 512


def test_a_file_that_is_damaged_is_ignored_with_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    path.write_bytes(b"firsttoken kv 1\n" + bytes(1000))
    with served("--cache.save_path", str(path)) as server:
        assert server.metric('firsttoken_cache_restores_total{outcome="corrupt"}') == 1
        assert cached_tokens(server, BYTES) == 0
        assert end(server) == 0
        (line,) = said(server, "saved cache ignored")
        assert "checksum" in str(line["why"])


def test_a_place_where_nothing_can_be_saved_is_named_at_the_start_and_does_not_change_the_end(tmp_path: Path) -> None:
    with served("--cache.save_path", str(tmp_path / "nowhere" / "kv")) as server:
        (line,) = said(server, "the cache cannot be saved there")
        assert str(tmp_path / "nowhere") in str(line["why"])
        cached_tokens(server, BYTES)
        assert end(server) == 0
        (line,) = said(server, "cache not saved")
        assert "No such file" in str(line["why"])
