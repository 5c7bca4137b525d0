"""Each wire against a server that speaks it, with the same workload."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path

import pytest

from loadtest.errors import TargetError, WorkloadError
from loadtest.record import RequestRecord
from loadtest.run import run_load
from loadtest.transports.base import Target
from loadtest.workload import Behaviour, Turns, Workload
from tests.load.fakes import fake, paced
from tests.load.test_sessions import byte_tokenizer, lengths


def run(target: Target, **changes: object) -> list[RequestRecord]:
    base: dict[str, object] = {"concurrency": 2, "requests": 4, "lengths": lengths("12", "5")}
    return run_load(Workload(**base | changes), target).records  # type: ignore[arg-type]


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return str(byte_tokenizer(tmp_path / "tokenizer.json", 500))


@pytest.mark.parametrize("options", [(), ("--raw",)])
def test_kserve_text(tokenizer: str, options: tuple[str, ...]) -> None:
    with fake("fake_kserve.py", *options) as address:
        records = run(Target("kserve", address, tokenizer=tokenizer))
    assert [(record.status, len(record.times)) for record in records] == [("OK", 5)] * 4
    assert min(record.ttft or 0 for record in records) >= 0.004


@pytest.mark.parametrize("options", [(), ("--raw",)])
def test_kserve_tokens(options: tuple[str, ...]) -> None:
    with fake("fake_kserve.py", *options) as address:
        records = run(Target("kserve", address, endpoint="tokens"))
    assert [(record.status, record.tokens) for record in records] == [("OK", array("i", [1] * 5))] * 4


def test_kserves_error_inside_an_ok_stream_is_no_success() -> None:
    with fake("fake_kserve.py", "--fail") as address:
        records = run(Target("kserve", address, endpoint="tokens"))
    assert {(record.status, record.detail) for record in records} == {("STREAM_ERROR", "the model is unwell")}


def test_kserve_names_a_model_that_is_not_there() -> None:
    with fake("fake_kserve.py") as address, pytest.raises(TargetError, match="nobody"):
        run(Target("kserve", address, endpoint="tokens", model="nobody"))


def test_a_wire_that_takes_text_asks_for_a_tokenizer() -> None:
    with fake("fake_kserve.py") as address, pytest.raises(WorkloadError, match="--tokenizer"):
        run(Target("kserve", address))


def test_openai_completions_take_ids_and_count_their_tokens() -> None:
    with fake("fake_openai.py", "--tokens-per-event", "2") as address:
        records = run(Target("openai", f"http://{address}/v1"))
    for record in records:
        assert record.status == "OK"
        assert (record.usage.prompt_tokens, record.usage.cached_tokens, record.usage.completion_tokens) == (12, 3, 10)
        assert record.gap_tokens() == [2.0] * 4


def test_openai_chat_takes_text_of_exact_length(tokenizer: str) -> None:
    with fake("fake_openai.py") as address:
        records = run(Target("openai", address, endpoint="chat", tokenizer=tokenizer))
    assert {(record.status, record.usage.prompt_tokens) for record in records} == {("OK", 12)}


def test_a_conversation_over_text_carries_the_answers(tokenizer: str) -> None:
    from loadtest.distributions import Distribution

    turns = Turns(Distribution("constant", {"value": 2.0}))
    with fake("fake_openai.py") as address:
        records = run(
            Target("openai", address, send_text=True, tokenizer=tokenizer), concurrency=1, requests=1, turns=turns
        )
    assert [record.usage.prompt_tokens for record in records] == [12, 12 + 5 + 12]


def test_a_kept_connection_that_the_server_lets_go_is_no_failure() -> None:
    """llama.cpp's server does so after a hundred requests and after some seconds."""
    with fake("fake_openai.py", "--hang-up", "kept") as address:
        records = run(Target("openai", address), requests=12)
    assert [(record.status, len(record.times)) for record in records] == [("OK", 5)] * 12
    with fake("fake_openai.py", "--hang-up", "always") as address:
        records = run(Target("openai", address))
    assert {record.status for record in records} == {"UNAVAILABLE"}


def test_http_errors_cuts_and_cancels_are_told_apart() -> None:
    from loadtest.distributions import Distribution

    with fake("fake_openai.py", "--fail", "5") as address:
        refused = run(Target("openai", address))
    assert {record.status for record in refused} == {"HTTP 429"}
    assert "too many" in refused[0].detail
    with fake("fake_openai.py", "--cut") as address:
        cut = run(Target("openai", address))
    assert {record.status for record in cut} == {"UNAVAILABLE"}
    with fake("fake_openai.py", "--gap", "30") as address:
        given_up = Behaviour(cancel_rate=1.0, cancel_after=Distribution("constant", {"value": 0.1}))
        cancelled = run(Target("openai", address), behaviour=given_up)
        late = run(Target("openai", address), behaviour=Behaviour(deadline=0.1))
    assert {record.status for record in cancelled} == {"CLIENT_CANCELLED"}
    assert {record.status for record in late} == {"DEADLINE_EXCEEDED"}


@pytest.mark.parametrize(
    ("target", "changes", "problem"),
    [
        (Target("openai", "x"), {"classes": {"batch": 1.0}}, "--classes"),
        (Target("openai", "x"), {"behaviour": Behaviour(ttft_deadline=1.0)}, "--ttft-deadline"),
        (Target("openai", "x", model="other"), {}, "--model: 'other' is none of fake"),
        (Target("openai", "x", endpoint="images"), {}, "--endpoint"),
        (Target("openai", "x"), {"lengths": lengths("3000")}, "2048"),
    ],
)
def test_what_openai_cannot_say_is_refused(target: Target, changes: dict[str, object], problem: str) -> None:
    import msgspec

    with fake("fake_openai.py") as address, pytest.raises((WorkloadError, TargetError), match=problem):
        run(msgspec.structs.replace(target, address=address), **changes)


def test_an_unknown_wire_is_refused() -> None:
    with pytest.raises(TargetError, match="carrier pigeon"):
        run(Target("carrier pigeon", "127.0.0.1:1"))


def test_the_native_wire_sends_text_where_asked(tokenizer: str) -> None:
    with paced("--ttft", "0.01") as address:
        records = run(Target("native", address, send_text=True, tokenizer=tokenizer))
    assert {(record.status, record.usage.prompt_tokens) for record in records} == {("OK", 0)}


def test_a_faulty_event_is_no_success() -> None:
    from loadtest.transports.openai import HttpCall, OpenaiTransport

    class Listener:
        over: tuple[str, str] = ("", "")

        def on_content(self, *_: object, **__: object) -> None: ...

        def on_usage(self, _usage: object) -> None: ...

        def on_over(self, status: str, detail: str, _now: float) -> None:
            self.over = status, detail

    async def feed() -> tuple[str, str]:
        listener = Listener()
        transport = OpenaiTransport(Target("openai", "127.0.0.1:1"))
        assert not transport._event(b"not json", 0.0, listener, HttpCall(listener))
        return listener.over

    assert asyncio.run(feed())[0] == "INTERNAL"
