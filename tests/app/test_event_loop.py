"""The event loop that the server runs on."""

from __future__ import annotations

import sys

import pytest
import structlog

from server.event_loop import LoopFactory, loop_factory, name_of


def made_by(factory: LoopFactory) -> str:
    loop = factory()
    try:
        return name_of(loop)
    finally:
        loop.close()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no uvloop for Windows")
def test_uvloop_is_taken_where_it_is_installed() -> None:
    assert made_by(loop_factory(uvloop=True)) == "uvloop"


def test_asyncios_own_is_taken_where_it_is_asked_for() -> None:
    assert made_by(loop_factory(uvloop=False)) == "asyncio"


def test_without_uvloop_asyncio_serves_and_the_log_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)  # importing it raises ImportError
    with structlog.testing.capture_logs() as said:
        assert made_by(loop_factory(uvloop=True)) == "asyncio"
    assert [(line["event"], line["instead"]) for line in said] == [("uvloop is not installed", "asyncio")]
